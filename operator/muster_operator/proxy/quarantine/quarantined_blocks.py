"""Free blocks that are unusable because they contain a quarantined IPU. Pure.

Blocks are aligned. If a back end lists all IPUs in order, the blocks are known. Otherwise the four IPUs of an
IPU-Machine count as one aligned block, and every IPU-Machine as part of another block; the real capacity may then be
larger than the result, never smaller.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from muster_operator.vipu.controller import Ipu, VipuPartition

IPUS_OF_MACHINE = 4


@dataclass(frozen=True)
class IpuLayout:
    """IPUs of one controller. ipus: all, in order, or empty if the back end does not list them; in_use: those in
    partitions."""

    ipus: tuple[Ipu, ...]
    in_use: frozenset[Ipu]

    @staticmethod
    def of(ipus: Sequence[Ipu], partitions: Iterable[VipuPartition]) -> "IpuLayout":
        return IpuLayout(tuple(ipus), frozenset(ipu for each in partitions for ipu in each.ipus))


BlockKey = tuple[str, int]  # IPU-Machine, index of the block in it


@dataclass(frozen=True)
class QuarantinedBlocks:
    """Free blocks with a quarantined IPU. known: number that is certain. maybe: blocks of IPUs that may belong to this
    controller; in_use: its blocks that are in partitions."""

    known: int = 0
    maybe: frozenset[BlockKey] = frozenset()
    in_use: frozenset[BlockKey] = frozenset()


def find_quarantined_blocks(layout: IpuLayout, quarantined: Collection[Ipu], size: int) -> QuarantinedBlocks:
    """Aligned blocks of ``size`` IPUs; with size 1, IPUs."""
    if layout.ipus:
        block_of = {ipu: number // size for number, ipu in enumerate(layout.ipus)}
        in_use = {block_of[ipu] for ipu in layout.in_use if ipu in block_of}
        whole = len(layout.ipus) // size
        bad = {block_of[ipu] for ipu in quarantined if ipu in block_of and block_of[ipu] < whole}
        return QuarantinedBlocks(len(bad - in_use))
    in_use_here = frozenset(_block_key(ipu, size) for ipu in layout.in_use)
    return QuarantinedBlocks(0, frozenset(_block_key(ipu, size) for ipu in quarantined) - in_use_here, in_use_here)


def count_quarantined_blocks(each: Iterable[QuarantinedBlocks]) -> int:
    """Total of all controllers; a block that two of them may have counts once."""
    found = list(each)
    maybe: frozenset[BlockKey] = frozenset().union(*(one.maybe for one in found))
    in_use: frozenset[BlockKey] = frozenset().union(*(one.in_use for one in found))
    return sum(one.known for one in found) + len(maybe - in_use)


def _block_key(ipu: Ipu, size: int) -> BlockKey:
    return ipu.machine, ipu.index // min(size, IPUS_OF_MACHINE)

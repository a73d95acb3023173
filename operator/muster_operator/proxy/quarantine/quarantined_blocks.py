"""Which free blocks cannot be used because of a quarantined IPU in them. Pure.

Blocks are aligned. Where a back end names all IPUs in order, these blocks are known; where not, an IPU-Machine's four
are taken for one aligned block, and every IPU-Machine for one of another block: then there may be more room than is
told, never less.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from muster_operator.vipu.controller import Ipu, VipuPartition

IPUS_OF_MACHINE = 4


@dataclass(frozen=True)
class IpuLayout:
    """One controller's. ipus: all, in order, or empty where the back end cannot tell; in_use: those in partitions."""

    ipus: tuple[Ipu, ...]
    in_use: frozenset[Ipu]

    @staticmethod
    def of(ipus: Sequence[Ipu], partitions: Iterable[VipuPartition]) -> "IpuLayout":
        return IpuLayout(tuple(ipus), frozenset(ipu for each in partitions for ipu in each.ipus))


BlockKey = tuple[str, int]  # IPU-Machine, number of the block there


@dataclass(frozen=True)
class QuarantinedBlocks:
    """Free blocks with a quarantined IPU in them. known: so many for sure. maybe: blocks of IPUs that this controller
    may have or not; in_use: blocks that it has, and that are in partitions."""

    known: int = 0
    maybe: frozenset[BlockKey] = frozenset()
    in_use: frozenset[BlockKey] = frozenset()


def find_quarantined_blocks(layout: IpuLayout, quarantined: Collection[Ipu], size: int) -> QuarantinedBlocks:
    """Of aligned blocks of ``size`` IPUs; with size 1, of IPUs."""
    if layout.ipus:
        block_of = {ipu: number // size for number, ipu in enumerate(layout.ipus)}
        in_use = {block_of[ipu] for ipu in layout.in_use if ipu in block_of}
        whole = len(layout.ipus) // size
        bad = {block_of[ipu] for ipu in quarantined if ipu in block_of and block_of[ipu] < whole}
        return QuarantinedBlocks(len(bad - in_use))
    in_use_here = frozenset(_block_key(ipu, size) for ipu in layout.in_use)
    return QuarantinedBlocks(0, frozenset(_block_key(ipu, size) for ipu in quarantined) - in_use_here, in_use_here)


def count_quarantined_blocks(each: Iterable[QuarantinedBlocks]) -> int:
    """Over all controllers: a block that two of them may have is one."""
    found = list(each)
    maybe: frozenset[BlockKey] = frozenset().union(*(one.maybe for one in found))
    in_use: frozenset[BlockKey] = frozenset().union(*(one.in_use for one in found))
    return sum(one.known for one in found) + len(maybe - in_use)


def _block_key(ipu: Ipu, size: int) -> BlockKey:
    return ipu.machine, ipu.index // min(size, IPUS_OF_MACHINE)

"""How much room there is, less what is quarantined. Pure.

Blocks are aligned. Where a back end names all IPUs in order, spoilt blocks are known; where not, an IPU-Machine's four
are taken for one aligned block, and every IPU-Machine for one of another block: then there may be more room than is
told, never less.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from muster_operator.vipu.controller import Ipu, VipuPartition

IPUS_OF_MACHINE = 4


@dataclass(frozen=True)
class IpuLayout:
    """One controller's. ipus: all, in order, or empty where the back end cannot tell; held: in partitions."""

    ipus: tuple[Ipu, ...]
    held: frozenset[Ipu]

    @staticmethod
    def of(ipus: Sequence[Ipu], partitions: Iterable[VipuPartition]) -> "IpuLayout":
        return IpuLayout(tuple(ipus), frozenset(ipu for each in partitions for ipu in each.ipus))


Block = tuple[str, int]


@dataclass(frozen=True)
class QuarantinedBlocks:
    """Free blocks with a quarantined IPU in them. known: so many for sure. maybe: blocks of IPUs that this controller
    may have or not; taken: blocks that it has, and that are held."""

    known: int = 0
    maybe: frozenset[Block] = frozenset()
    taken: frozenset[Block] = frozenset()


def find_quarantined_blocks(layout: IpuLayout, quarantined: Collection[Ipu], size: int) -> QuarantinedBlocks:
    """Of aligned blocks of ``size`` IPUs; with size 1, of IPUs."""
    if layout.ipus:
        place = {ipu: number // size for number, ipu in enumerate(layout.ipus)}
        taken = {place[ipu] for ipu in layout.held if ipu in place}
        whole = len(layout.ipus) // size
        return QuarantinedBlocks(
            len({place[ipu] for ipu in quarantined if ipu in place and place[ipu] < whole} - taken)
        )
    taken_here = frozenset(_block(ipu, size) for ipu in layout.held)
    return QuarantinedBlocks(0, frozenset(_block(ipu, size) for ipu in quarantined) - taken_here, taken_here)


def count_quarantined_blocks(each: Iterable[QuarantinedBlocks]) -> int:
    """Over all controllers: a block that two of them may have is one."""
    found = list(each)
    maybe: frozenset[Block] = frozenset().union(*(one.maybe for one in found))
    taken: frozenset[Block] = frozenset().union(*(one.taken for one in found))
    return sum(one.known for one in found) + len(maybe - taken)


def is_power_of_two(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def list_sizes(limit: int) -> str:
    """What is allowed, for people."""
    return ", ".join(str(1 << power) for power in range(limit.bit_length()))


def _block(ipu: Ipu, size: int) -> Block:
    return ipu.machine, ipu.index // min(size, IPUS_OF_MACHINE)

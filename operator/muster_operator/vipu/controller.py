"""One V-IPU controller, as the proxy needs it. Back ends: the documented ``vipu`` command line, and the simulator.

V-IPU chooses the IPUs of a partition itself; sizes are powers of two, a partition is an aligned block of them
(docs.graphcore.ai, V-IPU user guide, partitions; that blocks are aligned is inferred).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

# ACTIVE is what the command line prints; the others are the simulator's. One that is not known counts as not ready.
PartitionState = Literal["CREATING", "ACTIVE", "RESETTING", "REMOVING", "ERROR", "OTHER"]


@dataclass(frozen=True, order=True)
class Ipu:
    """machine: the IPU-Machine's address as gc-info prints it; index: the tools' "IPU#" there."""

    machine: str
    index: int


@dataclass(frozen=True)
class VipuPartition:
    """ipus: empty where the back end cannot tell. message: V-IPU's word where the state is not ACTIVE."""

    name: str
    size: int
    gcds: int
    state: PartitionState
    ipus: tuple[Ipu, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Capacity:
    """total and free: in IPUs."""

    total: int
    free: int


class VipuError(Exception):
    """V-IPU said no, or said what cannot be understood; its words are the message."""


class VipuUnreachable(VipuError):
    """No answer: what was asked for may or may not have happened."""


class NoRoom(VipuError):
    """No aligned block of this size is free."""


class PartitionExists(VipuError):
    pass


class VipuController(Protocol):
    """All calls are bounded in time (VipuUnreachable) and raise VipuError. ``address``: host:port."""

    address: str

    async def list_partitions(self) -> Sequence[VipuPartition]:
        """All there are, of whomever."""
        ...

    async def find_partition(self, name: str) -> VipuPartition | None: ...

    async def create(self, name: str, size: int, gcds: int) -> None:
        """Begin to make it; it is usable once ACTIVE. Raises NoRoom, PartitionExists."""
        ...

    async def reset(self, name: str) -> None:
        """Begin to reset its IPUs: state as after its creation."""
        ...

    async def remove(self, name: str) -> None:
        """Begin to remove it; one that is not there is no error."""
        ...

    async def read_capacity(self) -> Capacity: ...

    async def count_free_blocks(self, size: int) -> int:
        """How many partitions of ``size`` IPUs could be made now, one after the other."""
        ...


@runtime_checkable
class IpuLister(Protocol):
    """A back end that can name all IPUs: then blocks that a quarantined one spoils are counted exactly."""

    async def list_ipus(self) -> Sequence[Ipu]:
        """All, in the order in which aligned blocks are cut: those of size n begin at every n-th."""
        ...

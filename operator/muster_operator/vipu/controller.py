"""The interface to one V-IPU controller. Back ends: the documented ``vipu`` command line, and the simulator.

V-IPU chooses the IPUs of a partition. Sizes are powers of two, and a partition is an aligned block of IPUs
(docs.graphcore.ai, V-IPU user guide, partitions; that blocks are aligned is inferred).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

# the command line prints ACTIVE; the others are the simulator's. An unknown state counts as not ready
PartitionState = Literal["CREATING", "ACTIVE", "RESETTING", "REMOVING", "ERROR", "OTHER"]


@dataclass(frozen=True, order=True)
class Ipu:
    """machine: the IPU-Machine's address as gc-info prints it; index: the tools' "IPU#" on it."""

    machine: str
    index: int


@dataclass(frozen=True)
class VipuPartition:
    """ipus: empty if the back end does not report them. message: V-IPU's text if the state is not ACTIVE."""

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
    """V-IPU refused, or its output cannot be interpreted; the message contains its text."""


class VipuUnreachable(VipuError):
    """No answer: the requested change may or may not have happened."""


class NoRoom(VipuError):
    """No aligned block of this size is free."""


class PartitionExists(VipuError):
    pass


class VipuController(Protocol):
    """All calls are bounded in time (VipuUnreachable) and raise VipuError. ``address``: host:port."""

    address: str

    async def list_partitions(self) -> Sequence[VipuPartition]:
        """All partitions, including those that Muster did not create."""
        ...

    async def find_partition(self, name: str) -> VipuPartition | None: ...

    async def create(self, name: str, size: int, gcds: int) -> None:
        """Begin to create it; it is usable once ACTIVE. Raises NoRoom, PartitionExists."""
        ...

    async def reset(self, name: str) -> None:
        """Begin to reset its IPUs to the state after creation."""
        ...

    async def remove(self, name: str) -> None:
        """Begin to remove it; a missing partition is not an error."""
        ...

    async def read_capacity(self) -> Capacity: ...

    async def count_free_blocks(self, size: int) -> int:
        """Number of partitions of ``size`` IPUs that can be created now, one after the other."""
        ...


@runtime_checkable
class IpuLister(Protocol):
    """A back end that lists all IPUs, so that blocks with a quarantined IPU are counted exactly."""

    async def list_ipus(self) -> Sequence[Ipu]:
        """All IPUs, in the order of aligned blocks: a block of size n begins at every n-th."""
        ...

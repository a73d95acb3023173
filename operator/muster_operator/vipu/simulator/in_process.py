"""The simulator behind the back-end interface without a process between: for tests that turn the clock themselves.

    now = 0.0
    controller = InProcess(Fleet(ipus=32, delay_s=5), lambda: now)

Faults are set through ``controller.keeper``.
"""

import asyncio
from collections.abc import Sequence

from muster_operator.vipu.controller import (
    Capacity,
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)
from muster_operator.vipu.simulator import fleet as core
from muster_operator.vipu.simulator.fleet import Fleet
from muster_operator.vipu.simulator.keeping import Clock, Keeper


class InProcess:
    """A :class:`~muster_operator.vipu.controller.Controller`. timeout_s: slower answers than that do not come."""

    def __init__(self, fleet: Fleet, clock: Clock, address: str = "127.0.0.1:8090", timeout_s: float = 10.0) -> None:
        self.address = address
        self.keeper = Keeper(fleet, clock)
        self._timeout_s = timeout_s

    async def partitions(self) -> Sequence[VipuPartition]:
        await self._answered()
        return self.keeper.partitions()

    async def partition(self, name: str) -> VipuPartition | None:
        await self._answered()
        try:
            return self.keeper.partition(name)
        except core.NotThere:
            return None

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._answered()
        try:
            self.keeper.create(name, size, gcds)
        except core.Refused as refused:
            raise as_vipu_error(refused.why, str(refused)) from refused
        self._lost()

    async def reset(self, name: str) -> None:
        await self._answered()
        try:
            self.keeper.reset(name)
        except core.Refused as refused:
            raise as_vipu_error(refused.why, str(refused)) from refused
        self._lost()

    async def remove(self, name: str) -> None:
        await self._answered()
        self.keeper.remove(name)
        self._lost()

    async def capacity(self) -> Capacity:
        await self._answered()
        return self.keeper.capacity()

    async def free_blocks(self, size: int) -> int:
        await self._answered()
        try:
            return self.keeper.free_blocks(size)
        except core.Refused as refused:
            raise as_vipu_error(refused.why, str(refused)) from refused

    async def _answered(self) -> None:
        faults = self.keeper.faults
        if faults.slow:
            await asyncio.sleep(min(faults.slow, self._timeout_s))
        if faults.down or faults.slow > self._timeout_s:
            raise VipuUnreachable(f"{self.address}: no answer")

    def _lost(self) -> None:
        if self.keeper.loses_answer():
            raise VipuUnreachable(f"{self.address}: no answer")


def as_vipu_error(why: str, message: str) -> VipuError:
    """why: of fleet.Refused."""
    kinds: dict[str, type[VipuError]] = {"NoRoom": NoRoom, "Exists": PartitionExists}
    return kinds.get(why, VipuError)(message)

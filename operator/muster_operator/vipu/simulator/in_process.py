"""The simulator as a back end within the process, for tests that control the clock.

    now = 0.0
    controller = InProcessController(SimulatedFleet(ipus=32, delay_s=5), lambda: now)

Faults are set through ``controller.clocked_fleet``.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from muster_operator.vipu.controller import (
    Capacity,
    Ipu,
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)
from muster_operator.vipu.simulator.clocked_fleet import Clock, ClockedFleet
from muster_operator.vipu.simulator.fleet import SimulatedFleet, SimulatorRefusal

T = TypeVar("T")


class InProcessController:
    """A :class:`~muster_operator.vipu.controller.VipuController` and IpuLister.

    timeout_s: slower answers count as no answer
    """

    def __init__(
        self, fleet: SimulatedFleet, clock: Clock, address: str = "127.0.0.1:8090", timeout_s: float = 10.0
    ) -> None:
        self.address = address
        self.clocked_fleet = ClockedFleet(fleet, clock)
        self._timeout_s = timeout_s

    async def list_partitions(self) -> Sequence[VipuPartition]:
        return await self._answer(self.clocked_fleet.list_partitions)

    async def find_partition(self, name: str) -> VipuPartition | None:
        return next((each for each in await self.list_partitions() if each.name == name), None)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._answer(lambda: self.clocked_fleet.create(name, size, gcds), changes=True)

    async def reset(self, name: str) -> None:
        await self._answer(lambda: self.clocked_fleet.reset(name), changes=True)

    async def remove(self, name: str) -> None:
        await self._answer(lambda: self.clocked_fleet.remove(name), changes=True)

    async def read_capacity(self) -> Capacity:
        return await self._answer(self.clocked_fleet.read_capacity)

    async def count_free_blocks(self, size: int) -> int:
        return await self._answer(lambda: self.clocked_fleet.count_free_blocks(size))

    async def list_ipus(self) -> Sequence[Ipu]:
        return await self._answer(self.clocked_fleet.list_ipus)

    async def _answer(self, carry_out: Callable[[], T], *, changes: bool = False) -> T:
        silent = VipuUnreachable(f"{self.address}: no answer")
        faults = self.clocked_fleet.faults
        if faults.down:
            raise silent
        try:
            answer = carry_out()
        except SimulatorRefusal as refused:
            raise _to_vipu_error(refused.why, str(refused)) from refused
        if changes and self.clocked_fleet.lose_answer():
            raise silent
        if faults.slow:
            await asyncio.sleep(min(faults.slow, self._timeout_s))
        if faults.slow > self._timeout_s:
            raise silent
        return answer


def _to_vipu_error(why: str, message: str) -> VipuError:
    """why: of fleet.SimulatorRefusal."""
    kinds: dict[str, type[VipuError]] = {"NoRoom": NoRoom, "Exists": PartitionExists}
    return kinds.get(why, VipuError)(message)

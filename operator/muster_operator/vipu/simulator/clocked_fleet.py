"""One fleet that moves with a clock: each change is kept before it counts, so what was answered is never lost."""

import math
from collections.abc import Callable

import msgspec

from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator import fleet as core
from muster_operator.vipu.simulator.fleet import Faults, Fleet, Held

Clock = Callable[[], float]  # seconds; of a clock that goes on while the simulator does not run


class Keeper:
    """keep: puts a fleet where a restart finds it, whole or not at all; what it raises is raised by the change."""

    def __init__(self, fleet: Fleet, clock: Clock, keep: Callable[[Fleet], None] = lambda _: None) -> None:
        self._fleet = fleet
        self._clock = clock
        self._keep = keep
        self._due = -math.inf  # of the first change by time alone: nothing is looked through before

    @property
    def fleet(self) -> Fleet:
        """As of now."""
        now = self._clock()
        if now >= self._due:
            self._fleet = core.settled(self._fleet, now)
            self._due = core.due(self._fleet)
        return self._fleet

    @property
    def faults(self) -> Faults:
        return self._fleet.faults

    def create(self, name: str, size: int, gcds: int) -> VipuPartition:
        """Raises fleet.Refused, as the others do."""
        self._change(core.create(self._fleet, self._clock(), name, size, gcds))
        return self.partition(name)

    def reset(self, name: str) -> VipuPartition:
        self._change(core.reset(self._fleet, self._clock(), name))
        return self.partition(name)

    def remove(self, name: str) -> None:
        self._change(core.remove(self._fleet, self._clock(), name))

    def vanish(self, name: str) -> None:
        self._change(core.vanish(self._fleet, self._clock(), name))

    def set_faults(self, faults: Faults) -> None:
        self._change(core.with_faults(self._fleet, self._clock(), faults))

    def loses_answer(self) -> bool:
        """Whether the answer to the change that was just made gets lost; each loss counts."""
        left = self._fleet.faults.lose_answers
        if left:
            self.set_faults(msgspec.structs.replace(self._fleet.faults, lose_answers=left - 1))
        return left > 0

    def partition(self, name: str) -> VipuPartition:
        held = self.fleet.held(name)
        if held is None:
            raise core.NotThere(f"no partition {core.shown(name)}")
        return self._told(held)

    def partitions(self) -> tuple[VipuPartition, ...]:
        return tuple(self._told(held) for held in self.fleet.partitions)

    def ipus(self) -> tuple[Ipu, ...]:
        """All, in the order in which blocks are aligned."""
        return tuple(core.ipu_at(self._fleet, number) for number in range(self._fleet.ipus))

    def capacity(self) -> Capacity:
        fleet = self.fleet
        return Capacity(fleet.ipus, core.free(fleet, self._clock()))

    def free_blocks(self, size: int) -> int:
        return core.free_blocks(self._fleet, self._clock(), size)

    def _change(self, fleet: Fleet) -> None:
        if fleet is not self._fleet:
            self._keep(fleet)
            self._fleet, self._due = fleet, core.due(fleet)

    def _told(self, held: Held) -> VipuPartition:
        ipus = tuple(core.ipu_at(self._fleet, number) for number in held.ipus)
        return VipuPartition(held.name, held.size, held.gcds, held.state, ipus, held.message)

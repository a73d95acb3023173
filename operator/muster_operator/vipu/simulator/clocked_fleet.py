"""A fleet that moves with a clock. Each change is saved before it takes effect, so an answered change is never lost."""

import math
from collections.abc import Callable

import msgspec

from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator.fleet import (
    InjectedFaults,
    SimulatedFleet,
    SimulatedPartition,
    UnknownPartition,
    advance,
    count_free_blocks,
    count_free_ipus,
    create_partition,
    find_due_time,
    forget_partition,
    inject_faults,
    locate_ipu,
    remove_partition,
    reset_partition,
    shorten_repr,
)

Clock = Callable[[], float]  # seconds; of a clock that continues while the simulator does not run


class ClockedFleet:
    """keep: saves a fleet atomically for the next start; its exceptions are raised by the change."""

    def __init__(
        self, fleet: SimulatedFleet, clock: Clock, keep: Callable[[SimulatedFleet], None] = lambda _: None
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._keep = keep
        self._due = -math.inf  # time of the next change without a request; the fleet is not scanned before

    @property
    def fleet(self) -> SimulatedFleet:
        """The current fleet."""
        now = self._clock()
        if now >= self._due:
            self._fleet = advance(self._fleet, now)
            self._due = find_due_time(self._fleet)
        return self._fleet

    @property
    def faults(self) -> InjectedFaults:
        return self._fleet.faults

    def create(self, name: str, size: int, gcds: int) -> VipuPartition:
        """Raises fleet.SimulatorRefusal, as the other changes do."""
        self._change(create_partition(self._fleet, self._clock(), name, size, gcds))
        return self.get_partition(name)

    def reset(self, name: str) -> VipuPartition:
        self._change(reset_partition(self._fleet, self._clock(), name))
        return self.get_partition(name)

    def remove(self, name: str) -> None:
        self._change(remove_partition(self._fleet, self._clock(), name))

    def forget(self, name: str) -> None:
        self._change(forget_partition(self._fleet, self._clock(), name))

    def set_faults(self, faults: InjectedFaults) -> None:
        self._change(inject_faults(self._fleet, self._clock(), faults))

    def lose_answer(self) -> bool:
        """Whether to lose the answer to the change that was just made; each loss counts."""
        left = self._fleet.faults.lose_answers
        if left:
            self.set_faults(msgspec.structs.replace(self._fleet.faults, lose_answers=left - 1))
        return left > 0

    def get_partition(self, name: str) -> VipuPartition:
        held = self.fleet.find_partition(name)
        if held is None:
            raise UnknownPartition(f"no partition {shorten_repr(name)}")
        return self._describe(held)

    def list_partitions(self) -> tuple[VipuPartition, ...]:
        return tuple(self._describe(held) for held in self.fleet.partitions)

    def list_ipus(self) -> tuple[Ipu, ...]:
        """All IPUs, in the order of aligned blocks."""
        return tuple(locate_ipu(self._fleet, number) for number in range(self._fleet.ipus))

    def read_capacity(self) -> Capacity:
        fleet = self.fleet
        return Capacity(fleet.ipus, count_free_ipus(fleet, self._clock()))

    def count_free_blocks(self, size: int) -> int:
        return count_free_blocks(self._fleet, self._clock(), size)

    def _change(self, fleet: SimulatedFleet) -> None:
        if fleet is not self._fleet:
            self._keep(fleet)
            self._fleet, self._due = fleet, find_due_time(fleet)

    def _describe(self, held: SimulatedPartition) -> VipuPartition:
        ipus = tuple(locate_ipu(self._fleet, number) for number in held.ipus)
        return VipuPartition(held.name, held.size, held.gcds, held.state, ipus, held.message)

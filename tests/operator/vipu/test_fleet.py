"""The simulated fleet under random commands, faults, time and crashes, against what must always hold."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.faults import FaultRequest, add_faults
from muster_operator.vipu.simulator.fleet import (
    PASSING,
    InjectedFaults,
    SimulatedFleet,
    SimulatorRefusal,
    advance,
    create_partition,
    has_link,
    inject_faults,
    locate_ipu,
    number_machines,
    restart,
)

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
SIZES = (1, 2, 4, 8, 16, 32, 64)


class DiskFull(OSError):
    pass


def why_not(change: Callable[[], object]) -> str:
    """The refusal's word; empty where there was none."""
    try:
        change()
    except SimulatorRefusal as refused:
        return refused.why
    return ""


class FleetMachine(RuleBasedStateMachine):
    """Beside the simulator stands what was answered: which names are there, and of what size."""

    @initialize(machines=st.integers(1, 9), delay_s=st.sampled_from([0.0, 5.0]))
    def begin(self, machines: int, delay_s: float) -> None:
        self.now = 1000.0
        self.disk = b""
        self.disk_full = False
        self.answered: dict[str, tuple[int, int]] = {}
        self.leaving: set[str] = set()
        fleet = SimulatedFleet(ipus=4 * machines, delay_s=delay_s)
        self.keep(fleet)
        self.clocked_fleet = ClockedFleet(fleet, lambda: self.now, self.keep)

    def keep(self, fleet: SimulatedFleet) -> None:
        if self.disk_full:
            raise DiskFull("no space left")
        self.disk = msgspec.json.encode(fleet)

    @rule(name=NAMES, size=st.sampled_from([*SIZES, 3, 0]), gcds=st.sampled_from([1, 1, 2, 3]))
    def create(self, name: str, size: int, gcds: int) -> None:
        there = {each.name for each in self.clocked_fleet.list_partitions()}
        sensible = size in SIZES and size % gcds == 0
        room = self.clocked_fleet.count_free_blocks(size) if size in SIZES else 0
        expected = "Invalid" if not sensible else "Exists" if name in there else "NoRoom" if not room else ""
        assert why_not(lambda: self.clocked_fleet.create(name, size, gcds)) == expected
        if expected:
            return
        assert self.clocked_fleet.get_partition(name).state in ("CREATING", "ACTIVE", "ERROR")
        assert self.clocked_fleet.count_free_blocks(size) == room - 1
        self.answered[name] = (size, gcds)
        self.leaving.discard(name)

    @rule(name=NAMES)
    def reset(self, name: str) -> None:
        before = self.clocked_fleet.fleet.find_partition(name)
        expected = "NotThere" if before is None else "Busy" if before.state in PASSING else ""
        assert why_not(lambda: self.clocked_fleet.reset(name)) == expected

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.clocked_fleet.remove(name)
        held = self.clocked_fleet.fleet.find_partition(name)
        assert held is None or held.state == "REMOVING"
        self.now += 0.25
        self.clocked_fleet.remove(name)  # once more: it does not begin anew
        assert self.clocked_fleet.fleet.find_partition(name) in (held, None)
        if name in self.answered:
            self.leaving.add(name)

    @rule(seconds=st.sampled_from([0.5, 4.0, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(asked=st.sampled_from([{"ipu": "10.1.1.1/2"}, {"link": "10.1.1.1-10.1.1.2"}, {"stuck": "a"}, {"stuck": "b"}]))
    def something_breaks(self, asked: dict[str, Any]) -> None:
        if len(number_machines(self.clocked_fleet.fleet)) > 1 or "link" not in asked:
            self.clocked_fleet.set_faults(add_faults(self.clocked_fleet.fleet, FaultRequest(**asked)))

    @rule()
    def all_is_mended(self) -> None:
        self.clocked_fleet.set_faults(InjectedFaults())

    @rule(name=NAMES)
    def one_vanishes(self, name: str) -> None:
        if why_not(lambda: self.clocked_fleet.forget(name)):
            return
        self.answered.pop(name, None)
        self.leaving.discard(name)

    @precondition(lambda self: not self.disk_full)
    @rule(name=NAMES, size=st.sampled_from(SIZES))
    def the_disk_is_full_once(self, name: str, size: int) -> None:
        before, kept = self.clocked_fleet.fleet, self.disk
        self.disk_full = True
        for change in (
            lambda: self.clocked_fleet.create(name, size, 1),
            lambda: self.clocked_fleet.reset(name),
            lambda: self.clocked_fleet.remove(name),
        ):
            try:
                change()
            except (DiskFull, SimulatorRefusal):
                pass
            else:
                assert self.clocked_fleet.fleet == before  # there was nothing to change
        self.disk_full = False
        assert (self.clocked_fleet.fleet, self.disk) == (before, kept)

    @rule(size=st.sampled_from(SIZES))
    def free_blocks_are_what_can_be_made(self, size: int) -> None:
        clocked_fleet = ClockedFleet(self.clocked_fleet.fleet, lambda: self.now)
        free = clocked_fleet.count_free_blocks(size)
        outcomes = [why_not(lambda at=at: clocked_fleet.create(f"more-{at}", size, 1)) for at in range(free + 1)]  # type: ignore[misc] # a loop's variable
        assert outcomes == [""] * free + ["NoRoom"]

    @rule()
    def it_is_killed_and_started_again(self) -> None:
        before = self.clocked_fleet.list_partitions()
        fleet = msgspec.json.decode(self.disk, type=SimulatedFleet)
        self.clocked_fleet = ClockedFleet(restart(fleet, self.now), lambda: self.now, self.keep)
        assert self.clocked_fleet.list_partitions() == before

    @invariant()
    def what_was_answered_holds(self) -> None:
        there = {each.name: (each.size, each.gcds) for each in self.clocked_fleet.list_partitions()}
        for name, asked in self.answered.items():
            assert there.get(name, asked) == asked
            assert name in there or name in self.leaving
        assert set(there) <= set(self.answered)

    @invariant()
    def blocks_are_aligned_and_never_overlap(self) -> None:
        fleet = self.clocked_fleet.fleet
        taken = [number for held in fleet.partitions for number in held.ipus]
        assert len(taken) == len(set(taken))
        for held in fleet.partitions:
            assert held.size in SIZES
            assert held.first % held.size == 0
            assert held.first + held.size <= fleet.ipus
        assert self.clocked_fleet.read_capacity().free == fleet.ipus - len(taken)

    @invariant()
    def nothing_is_under_way_for_longer_than_it_takes(self) -> None:
        fleet = self.clocked_fleet.fleet
        for held in fleet.partitions:
            if held.state in PASSING and held.name not in fleet.faults.stuck:
                assert self.now < held.until <= self.now + fleet.delay_s


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=40, stateful_step_count=40)


def test_an_operation_begun_before_a_kill_ends_at_its_time() -> None:
    begun = create_partition(SimulatedFleet(ipus=8, delay_s=5), 100.0, "a", 4, 1)
    kept = msgspec.json.decode(msgspec.json.encode(begun), type=SimulatedFleet)
    for now, state in ((104.9, "CREATING"), (105.0, "ACTIVE"), (9999.0, "ACTIVE")):
        held = restart(kept, now).find_partition("a")
        assert held is not None
        assert held.state == state


def test_on_another_boots_clock_nothing_waits_longer_than_it_takes() -> None:
    begun = create_partition(SimulatedFleet(ipus=8, delay_s=5), 1_000_000.0, "a", 4, 1)
    again = restart(begun, 10.0)
    held = advance(again, 15.0).find_partition("a")
    assert held is not None
    assert held.state == "ACTIVE"


def test_a_fault_that_came_after_a_partition_was_made_breaks_it_though_nobody_looked_in_between() -> None:
    begun = create_partition(SimulatedFleet(ipus=8, delay_s=5), 0.0, "a", 4, 1)
    broken = inject_faults(begun, 60.0, InjectedFaults(ipus=(0,)))
    mended = inject_faults(broken, 61.0, InjectedFaults())
    held = mended.find_partition("a")
    assert held is not None
    assert held.state == "ERROR"
    assert [fact for fact in ("IPU 0", "10.1.1.1") if fact not in held.message] == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"ipus": 6}, "ipus: 6"),
        ({"ipus": 0}, "ipus: 0"),
        ({"ipus": 1 << 30}, f"ipus: {1 << 30}"),
        ({"firstRack": 56}, "56.* 0 .*55"),
        ({"delayS": -1}, "-1.* 0 .*3600"),
        ({"partitions": [{"name": "a", "size": 4, "gcds": 1, "first": 2, "state": "ACTIVE"}]}, "partition a"),
        ({"partitions": [{"name": "a", "size": 64, "gcds": 1, "first": 0, "state": "ACTIVE"}]}, "partition a"),
        (
            {"partitions": [{"name": n, "size": 4, "gcds": 1, "first": 0, "state": "ACTIVE"} for n in "ab"]},
            "partition b",
        ),
        ({"partitions": [{"name": "a", "size": 4, "gcds": 1, "first": 0, "state": "GONE"}]}, "'GONE'"),
        ({"oops": 1}, "`oops`"),
    ],
)
def test_a_fleet_that_cannot_be_is_not_read(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.json.decode(msgspec.json.encode({"ipus": 16} | changed), type=SimulatedFleet)


def test_ipus_are_where_their_rack_and_machine_say() -> None:
    fleet = SimulatedFleet(ipus=256, first_rack=3)
    assert [str(locate_ipu(fleet, number).machine) for number in (0, 4, 63, 64, 255)] == [
        "10.1.3.1",
        "10.1.3.2",
        "10.1.3.16",
        "10.1.4.1",
        "10.1.6.16",
    ]
    assert not has_link(fleet, 15)  # no link leaves a rack
    assert has_link(fleet, 14)

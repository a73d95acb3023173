"""When checks run by themselves: spread over a fleet, in place over restarts, and none held up by another."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.schedule import PhasedTrigger, Schedule, phase_s
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.clock import AgentClock
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Result, Verdict

FAR = 1e8  # seconds: no turn comes while a test runs
NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


async def _nothing(_node: NodeView, _parameters: Parameters) -> list[object]:
    return []


def check(name: str, *, cost: Cost = Cost.LIGHT, shares: str = "") -> SnapshotCheck:
    declared = Check(
        name=name,
        description=name,
        cost=cost,
        parameters=Parameters,
        timeout_s=FAR,
        devices=("host",),
        period_s=FAR,
        probe=_nothing,  # type: ignore[arg-type]
        shares=shares,
    )
    return SnapshotCheck(declared, Parameters(), LocalNode(name="node-1", view=NodeView(), boot_id="b"), None)


def ran(running: SnapshotCheck, at: float) -> SnapshotCheck:
    running.last, running.ran_at = Result(check=running.name, verdict=Verdict.PASS, started=at), at
    return running


class Turns:
    """What a schedule did."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.due: list[str] = []
        self.overruns: Counter[str] = Counter()
        self.hanging: set[str] = set()
        self.breaking: set[str] = set()
        self.going: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.changed = asyncio.Event()

    async def run_turn(self, running: NodeCheck) -> None:
        self.going[running.name] += 1
        self.most[running.name] = max(self.most[running.name], self.going[running.name])
        self.runs[running.name] += 1
        self.changed.set()
        try:
            if running.name in self.breaking:
                raise RuntimeError("broken")
            if running.name in self.hanging:
                await asyncio.Event().wait()
        finally:
            self.going[running.name] -= 1

    def mark_due(self, name: str) -> None:
        self.due.append(name)
        self.changed.set()

    def count_overrun(self, name: str) -> None:
        self.overruns[name] += 1
        self.changed.set()

    async def until(self, seen: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self.changed.clear()
                await self.changed.wait()


def schedule(turns: Turns, checks: list[SnapshotCheck], period_s: float, **more: object) -> Schedule:
    named = {each.name: each for each in checks}
    periods = dict.fromkeys(named, period_s)
    return Schedule(
        "node-1",
        named,
        periods,
        turns,
        AgentClock(**more),  # type: ignore[arg-type]
    )


def test_a_fleet_of_15000_spreads_evenly_over_the_period():
    places = Counter(int(phase_s(f"node-{number}", "gputemp", 300.0)) for number in range(15_000))
    assert set(places) == set(range(300))
    assert max(places.values()) < 100, "the mean is 50"


def test_a_check_keeps_its_place_over_restarts_and_days():
    trigger = PhasedTrigger(17.25, 60.0)
    first = trigger.get_next_fire_time(None, NOON)
    assert first == NOON + timedelta(seconds=17.25)
    again = PhasedTrigger(17.25, 60.0).get_next_fire_time(None, NOON + timedelta(days=3))
    assert again == first + timedelta(days=3)


def test_the_next_turn_comes_a_period_after_the_last_one_even_when_that_was_late():
    trigger = PhasedTrigger(17.25, 60.0)
    late = NOON + timedelta(seconds=40)
    assert trigger.get_next_fire_time(NOON + timedelta(seconds=17.25), late) == NOON + timedelta(seconds=77.25)


def test_a_turn_never_comes_twice_however_its_time_is_rounded():
    for place in (0.0, 1 / 3, 0.1234567, 4.999999):
        trigger, at = PhasedTrigger(place, 5.0), NOON
        for _ in range(500):
            following = trigger.get_next_fire_time(at, at)
            assert timedelta(seconds=0.1) < following - at <= timedelta(seconds=5.01)
            at = following


def test_a_clock_that_leaps_by_decades_gives_one_turn_not_millions():
    trigger = PhasedTrigger(3.0, 60.0)
    first = trigger.get_next_fire_time(None, datetime(1970, 1, 1, tzinfo=UTC))
    assert trigger.get_next_fire_time(first, NOON) > NOON


async def test_what_has_not_run_in_this_boot_runs_at_once_and_what_has_waits_for_its_place():
    turns = Turns()
    now = datetime.now(UTC).timestamp()
    checks = [
        check("new"),
        ran(check("fresh"), now),
        ran(check("overdue"), now - 2 * FAR),
        ran(check("ahead"), now + 9e9),
    ]
    task = asyncio.create_task(schedule(turns, checks, FAR).run())
    await turns.until(lambda: len(turns.runs) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert turns.runs == {"new": 1, "overdue": 1, "ahead": 1}, "a run of the future is a clock that was wrong"


async def test_a_hanging_and_a_breaking_check_delay_no_other_and_overlap_nothing():
    turns = Turns()
    turns.hanging, turns.breaking = {"hangs"}, {"breaks"}
    checks = [check("hangs"), check("breaks"), check("sound")]
    task = asyncio.create_task(schedule(turns, checks, 0.05).run())
    await turns.until(lambda: turns.runs["sound"] >= 5 and turns.runs["breaks"] >= 5 and turns.overruns["hangs"] >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert turns.runs["hangs"] == 1
    assert turns.most == {"hangs": 1, "breaks": 1, "sound": 1}


async def test_a_heavy_check_falls_due_and_is_not_run():
    turns = Turns()
    task = asyncio.create_task(schedule(turns, [check("heavy", cost=Cost.HEAVY)], FAR).run())
    await turns.until(lambda: turns.due)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (turns.due, turns.runs) == (["heavy"], {})


def test_checks_that_share_a_reading_have_one_place():
    turns = Turns()
    made = schedule(turns, [check("gputemp", shares="nvml"), check("gpuecc", shares="nvml"), check("disk")], 60.0)
    places = {name: made._trigger(name, 60.0).get_next_fire_time(None, NOON) for name in ("gputemp", "gpuecc", "disk")}
    assert places["gputemp"] == places["gpuecc"] != places["disk"]


async def test_a_clock_that_is_set_back_stops_no_check(monkeypatch):
    monkeypatch.setattr("muster_agent.checks.schedule.CLOCK_LOOK_S", 0.01)
    wall = [1000.0]
    made = schedule(Turns(), [ran(check("disk"), 1000.0)], FAR, wall=lambda: wall[0], monotonic=lambda: 0.0)
    placed: list[float] = []
    again = asyncio.Event()
    trigger = made._trigger

    def noted(name: str, period_s: float) -> PhasedTrigger:
        placed.append(wall[0])
        if len(placed) > 1:
            again.set()
        return trigger(name, period_s)

    made._trigger = noted  # type: ignore[method-assign]
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)  # it has taken the time
    wall[0] = -86_400.0
    async with asyncio.timeout(60):
        await again.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert placed == [1000.0, -86_400.0], "once for each time it was set"

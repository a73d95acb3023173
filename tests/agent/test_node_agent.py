"""The agent without its edges: shared runs, refusals, what is due, and its own plan."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from pydantic import Field
from tests.agent.recording_reporter import RecordingReporter

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.run_admission import CpuShare, RunQueue
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.clock import AgentClock
from muster_agent.idle.occupancy import AlwaysIdle
from muster_agent.node_agent import Agent, RunPlan
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.execution import NotHere
from muster_checks.base.vocabulary import Finding, Verdict
from muster_kube.nodehealth import AgentIdentity

FAR = 3600.0
LONG_AGO = 1_000_000.0


class Limits(Parameters):
    limit: float = Field(4.0, description="GB/s")


BAD = Finding(component="gpu/0", verdict=Verdict.FAIL, reason="Slow", message="slow")


class Probe:
    """One check's, told what to find and when."""

    def __init__(self) -> None:
        self.found: Sequence[Finding] | Exception = ()
        self.runs = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()

    async def __call__(self, _node: NodeView, _parameters: Limits) -> Sequence[Finding]:
        self.runs += 1
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Bench:
    def __init__(self, *, local_plan: bool = True, post_flight: Sequence[str] = ()) -> None:
        self.now = LONG_AGO
        self.reporter = RecordingReporter()
        self.occupancy = AlwaysIdle(self.now)
        self.light, self.heavy, self.other = Probe(), Probe(), Probe()
        clock = AgentClock(monotonic=lambda: self.now, wall=lambda: self.now)
        self.local = LocalNode(name="node-1", view=NodeView(), boot_id="boot", clock=clock)
        checks = [
            self._check("temp", Cost.LIGHT, self.light),
            self._check("pciebw", Cost.HEAVY, self.heavy),
            self._check("dcgm", Cost.HEAVY, self.other),
        ]
        self.agent = Agent(
            self.local,
            checks,
            AgentIdentity(pod_uid="pod-1", version="1"),
            queue=RunQueue(self.occupancy, light_at_once=4, cpu=CpuShare(1.0, used=lambda: 0.0), look_s=0.005),
            plan=RunPlan(
                periods=dict.fromkeys(("temp", "pciebw", "dcgm"), FAR), local=local_plan, post_flight=post_flight
            ),
            reporter=self.reporter,
        )

    def _check(self, name: str, cost: Cost, probe: Probe) -> SnapshotCheck:
        check = Check(
            name=name,
            description=name,
            cost=cost,
            parameters=Limits,
            timeout_s=FAR,
            devices=("gpu",),
            period_s=FAR,
            probe=probe,
        )
        return SnapshotCheck(check, Limits(), self.local, None, self.reporter)

    def busy_with(self, what: str) -> None:
        self.occupancy.busy = what
        self.occupancy.idle_since = None if what else self.now
        self.agent.occupancy_changed()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not seen():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.001)

    async def ask(self, name: str, **how: object):
        return await self.agent.run_check(self.agent.checks[name], Limits(), **how)  # type: ignore[arg-type]


@pytest.fixture
async def bench():
    return Bench()


async def test_callers_of_one_check_share_a_run_and_others_do_not(bench: Bench):
    bench.light.gate.clear()
    shared = [asyncio.create_task(bench.ask("temp")) for _ in range(3)]
    other = asyncio.create_task(bench.agent.run_check(bench.agent.checks["temp"], Limits(limit=9)))
    await bench.until(lambda: bench.light.runs == 2)
    bench.light.gate.set()
    answers = await asyncio.gather(*shared, other)
    assert bench.light.runs == 2
    assert answers[0] is answers[1] is answers[2] is not answers[3]


async def test_who_asks_for_a_light_check_does_not_wait_with_its_turn_for_the_processor(bench: Bench):
    used = [0.0]
    bench.agent.queue = RunQueue(bench.occupancy, light_at_once=1, cpu=CpuShare(0.01, used=lambda: used[0]))
    used[0] = 1000.0
    temp = bench.agent.checks["temp"]
    turn = asyncio.create_task(bench.agent.run_turn(temp))
    await asyncio.sleep(0)
    answered = await bench.agent.run_check(temp, temp.parameters)
    assert (answered.result.verdict, turn.done()) == (Verdict.PASS, False)
    turn.cancel()


async def test_a_run_is_called_off_when_the_last_caller_has_gone_and_not_before(bench: Bench):
    bench.light.gate.clear()
    first, second = (asyncio.create_task(bench.ask("temp")) for _ in range(2))
    await bench.light.begun.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not bench.light.cancelled
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await bench.until(lambda: bench.light.cancelled == 1)
    bench.light.gate.set()
    assert (await bench.ask("temp")).result.verdict is Verdict.PASS, "the next caller gets a run of its own"


async def test_a_refused_check_answers_with_its_last_result_and_age(bench: Bench):
    bench.heavy.found = [BAD]
    await bench.ask("pciebw")
    bench.now += 90
    bench.busy_with("pod team-a/train-0 holds nvidia.com/gpu")
    answered = await bench.ask("pciebw")
    assert (answered.refused, answered.age_s, answered.result.verdict) == ("busy", 90, Verdict.FAIL)
    assert "team-a/train-0" in answered.why
    assert bench.heavy.runs == 1
    assert bench.agent.checks["pciebw"].tallies["refused"] == 1


async def test_a_refused_check_that_has_never_run_is_unknown_busy(bench: Bench):
    bench.busy_with("a job")
    answered = await bench.ask("pciebw")
    assert (answered.refused, answered.result.verdict, answered.result.reason) == ("busy", Verdict.UNKNOWN, "Busy")
    assert not bench.agent.checks["pciebw"].known, "a refused run makes no result"


async def test_work_that_comes_ends_the_run_and_leaves_the_last_result(bench: Bench):
    await bench.ask("pciebw")
    bench.heavy.gate.clear()
    bench.heavy.begun.clear()
    asking = asyncio.create_task(bench.ask("pciebw"))
    await bench.heavy.begun.wait()
    bench.busy_with("a job")
    answered = await asking
    assert (answered.refused, answered.result.verdict, bench.heavy.cancelled) == ("busy", Verdict.PASS, 1)
    assert bench.agent.checks["pciebw"].tallies["gave_way"] == 1


async def test_callers_that_wait_get_an_answer_when_the_agent_stops(bench: Bench):
    bench.heavy.gate.clear()
    asking = asyncio.create_task(bench.ask("pciebw"))
    await bench.heavy.begun.wait()
    await bench.agent.stop()
    answered = await asking
    assert (answered.result.verdict, answered.result.reason) == (Verdict.UNKNOWN, "Stopping")
    assert bench.heavy.cancelled == 1


async def test_the_last_result_is_returned_without_a_run(bench: Bench):
    assert bench.agent.last_outcome(bench.agent.checks["temp"]).result.reason == "NotRun"
    await bench.ask("temp")
    bench.now += 5
    assert bench.agent.last_outcome(bench.agent.checks["temp"]).age_s == 5
    assert bench.light.runs == 1


async def test_the_same_result_again_is_no_change(bench: Bench):
    await bench.ask("temp")
    changes = bench.reporter.changes
    await bench.ask("temp")
    assert (bench.reporter.changes, bench.reporter.reruns) == (changes, 1)
    bench.light.found = [BAD]
    await bench.ask("temp")
    assert bench.reporter.changes > changes


async def test_a_device_that_is_not_there_is_skip_not_pass(bench: Bench):
    bench.light.found = NotHere("no GPU here")
    await bench.ask("temp")
    view = bench.agent.checks["temp"].view()
    assert (view.verdict, view.reason, view.message) == (Verdict.SKIP, "NoDevice", "no GPU here")
    bench.light.found = []
    await bench.ask("temp")
    assert bench.agent.checks["temp"].view().verdict is Verdict.PASS


async def test_what_is_due_runs_on_an_idle_node_one_after_another_the_longest_waiting_first(bench: Bench):
    bench.busy_with("a job")
    running = asyncio.create_task(bench.agent.run())
    await bench.until(lambda: set(bench.agent.due()) == {"pciebw", "dcgm"})
    assert bench.heavy.runs == bench.other.runs == 0, "not beside a job"
    await bench.until(lambda: bench.agent.desired() is not None)
    status = bench.agent.desired()
    assert status is not None
    assert (status.idle_since, set(status.due)) == ("", {"pciebw", "dcgm"})
    bench.busy_with("")
    await bench.until(lambda: bench.heavy.runs == bench.other.runs == 1)
    await bench.until(lambda: bench.agent.due() == ())
    status = bench.agent.desired()
    assert status is not None
    assert status.idle_since != ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_longest_waiting_is_named_first(bench: Bench):
    for name in ("dcgm", "pciebw"):
        bench.agent.mark_due(name)
        bench.now += 1
    assert bench.agent.due() == ("dcgm", "pciebw")


async def test_under_the_fleets_plan_nothing_heavy_runs_by_itself():
    bench = Bench(local_plan=False)
    running = asyncio.create_task(bench.agent.run())
    await bench.until(lambda: len(bench.agent.due()) == 2 and bench.light.runs == 1)
    assert bench.heavy.runs == bench.other.runs == 0
    await bench.ask("dcgm")
    assert bench.agent.due() == ("pciebw",), "however it came to run, it is not due any more"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_heavy_check_without_its_device_is_not_due_again_in_this_boot(bench: Bench):
    bench.heavy.found = NotHere("no GPU here")
    await bench.ask("pciebw")
    bench.now += 2 * FAR
    bench.agent.mark_due("pciebw")
    assert bench.agent.due() == ()


async def test_a_heavy_check_that_has_just_run_is_not_due_at_its_turn(bench: Bench):
    await bench.ask("pciebw")
    bench.now += FAR / 4
    bench.agent.mark_due("pciebw")
    assert bench.agent.due() == ()
    bench.now += FAR / 2
    bench.agent.mark_due("pciebw")
    assert bench.agent.due() == ("pciebw",)


async def test_the_end_of_a_job_makes_the_post_flight_checks_due():
    bench = Bench(post_flight=["pciebw"])
    await bench.ask("pciebw")
    bench.busy_with("a job")
    assert bench.agent.due() == ()
    bench.busy_with("")
    assert bench.agent.due() == ("pciebw",)


async def test_a_boot_is_named_only_after_its_light_checks_have_run(bench: Bench):
    bench.light.gate.clear()
    running = asyncio.create_task(bench.agent.run())
    await bench.light.begun.wait()
    assert bench.agent.desired() is None
    bench.now += 11
    status = bench.agent.desired()
    assert status is not None
    assert status.boot_id == "", "a pass that takes too long is published without the boot"
    bench.light.gate.set()
    await bench.until(lambda: (published := bench.agent.desired()) is not None and published.boot_id == "boot")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_light_check_whose_turns_do_not_come_about_makes_the_agent_unready(bench: Bench):
    await bench.ask("temp")
    assert bench.agent.unready() == []
    bench.now += 5 * FAR
    [reason] = bench.agent.unready()
    assert reason.startswith("temp: ")
    assert "18000 s" in reason

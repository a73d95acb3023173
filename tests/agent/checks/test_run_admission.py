"""Turns: light checks share the processor, heavy ones the accelerators with nobody."""

import asyncio

import pytest

from muster_agent.checks.run_admission import CpuShare, NodeBusy, RunQueue
from muster_agent.idle.occupancy import WHOLE_NODE, AlwaysIdle, RunScope
from muster_checks.base.vocabulary import Result, Verdict

DONE = Result(check="c", verdict=Verdict.PASS)


class Occupied(AlwaysIdle):
    """A node whose use the test decides; counts how often it was looked at during a test."""

    def __init__(self) -> None:
        super().__init__()
        self.looks_beside = 0

    async def find_foreign_work(self, _scope: RunScope = WHOLE_NODE, /) -> str:
        self.looks_beside += 1
        return self.busy


class Work:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.end = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> Result:
        self.begun.set()
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return DONE


def plenty() -> CpuShare:
    return CpuShare(1.0, used=lambda: 0.0)


def turns(occupancy: AlwaysIdle, light_at_once: int = 2) -> RunQueue:
    return RunQueue(occupancy, light_at_once=light_at_once, cpu=plenty(), look_s=0.005)


async def test_only_so_many_light_checks_run_side_by_side():
    made = turns(AlwaysIdle())
    works = [Work() for _ in range(3)]
    tasks = [asyncio.create_task(made.run_light(work)) for work in works]
    await asyncio.gather(*(work.begun.wait() for work in works[:2]))
    assert not works[2].begun.is_set()
    works[0].end.set()
    await works[2].begun.wait()
    for work in works:
        work.end.set()
    assert await asyncio.gather(*tasks) == [DONE] * 3


async def test_a_heavy_check_waits_for_the_one_before_it_and_for_no_light_one():
    made = turns(AlwaysIdle(), light_at_once=1)
    light, first, second = Work(), Work(), Work()
    tasks = [asyncio.create_task(made.run_light(light))]
    tasks += [asyncio.create_task(made.run_heavy(name, work)) for name, work in (("a", first), ("b", second))]
    await asyncio.gather(light.begun.wait(), first.begun.wait())
    assert (made.running_heavy, second.begun.is_set()) == ("a", False)
    first.end.set()
    await second.begun.wait()
    assert made.running_heavy == "b"
    light.end.set()
    second.end.set()
    await asyncio.gather(*tasks)
    assert made.running_heavy == ""


async def test_a_heavy_check_on_a_busy_node_is_refused_with_whose_work_it_is():
    node = Occupied()
    node.busy = "pod team-a/train-0 holds nvidia.com/gpu"
    work = Work()
    with pytest.raises(NodeBusy, match="team-a/train-0"):
        await turns(node).run_heavy("pciebw", work)
    assert not work.begun.is_set()


async def test_a_heavy_check_gives_way_when_work_comes():
    node, work = Occupied(), Work()
    running = asyncio.create_task(turns(node).run_heavy("pciebw", work))
    await work.begun.wait()
    node.busy = "pod team-a/train-0 holds nvidia.com/gpu"
    with pytest.raises(NodeBusy, match="team-a"):
        await running
    assert work.cancelled


async def test_by_force_a_heavy_check_runs_beside_work():
    node, work = Occupied(), Work()
    node.busy = "a job"
    running = asyncio.create_task(turns(node).run_heavy("pciebw", work, force=True))
    await work.begun.wait()
    work.end.set()
    assert await running == DONE
    assert not node.looks_beside


async def test_a_heavy_check_that_is_called_off_ends_its_work_and_frees_the_turn():
    made, work = turns(Occupied()), Work()
    running = asyncio.create_task(made.run_heavy("pciebw", work))
    await work.begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (work.cancelled, made.running_heavy) == (True, "")
    after = Work()
    after.end.set()
    assert await made.run_heavy("dcgm", after) == DONE


def test_light_checks_wait_when_their_share_of_the_processor_is_used_up():
    now, used = [0.0], [0.0]
    share = CpuShare(0.05, burst_s=10.0, used=lambda: used[0], clock=lambda: now[0])
    assert share.wait_s() == 0
    used[0] = 9.0
    assert share.wait_s() == 0, "a burst is allowed"
    used[0] = 12.0
    assert share.wait_s() == pytest.approx(2.0 / 0.05), "until the two seconds too many are earned"
    now[0] = 40.0
    assert share.wait_s() == pytest.approx(0.0)
    now[0] = 1e6
    used[0] += 10.5
    assert share.wait_s() == pytest.approx(0.5 / 0.05), "rest is saved up to the burst only"


def test_what_a_heavy_check_uses_is_not_charged_to_light_ones():
    now, used = [0.0], [0.0]
    share = CpuShare(0.05, burst_s=1.0, used=lambda: used[0], clock=lambda: now[0])
    used[0], now[0] = 500.0, 60.0
    share.forgive()
    assert share.wait_s() == 0


async def test_a_light_check_waits_no_longer_than_its_patience_and_holds_no_turn_meanwhile():
    waited: list[float] = []
    resting, rested = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        resting.set()
        await rested.wait()

    used = [0.0]
    cpu = CpuShare(0.01, burst_s=1.0, used=lambda: used[0], clock=lambda: 0.0)
    made = RunQueue(AlwaysIdle(), light_at_once=1, cpu=cpu, sleep=sleep)
    work = Work()
    work.end.set()
    used[0] = 100.0
    waiting = asyncio.create_task(made.wait_for_processor(30.0))
    await resting.wait()
    assert await made.run_light(work) == DONE, "people wait for nothing"
    assert waited == [30.0]
    rested.set()
    await waiting


async def test_tools_that_end_in_the_middle_of_a_heavy_check_are_not_charged_to_light_ones():
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    used = [0.0]
    cpu = CpuShare(0.01, burst_s=1.0, used=lambda: used[0], clock=lambda: 0.0)
    made, work = RunQueue(AlwaysIdle(), light_at_once=1, cpu=cpu, sleep=sleep), Work()
    running = asyncio.create_task(made.run_heavy("gpumem", work))
    await work.begun.wait()
    used[0] = 500.0
    await made.wait_for_processor(30.0)
    work.end.set()
    await running
    await made.wait_for_processor(30.0)
    assert waited == []


def test_processor_time_of_children_counts():
    import subprocess
    import sys

    from muster_agent.checks.run_admission import cpu_used_s

    before = cpu_used_s()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert cpu_used_s() - before > 0.01

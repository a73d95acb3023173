"""When the agent sends canaries."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from muster_agent.clock import AgentClock
from muster_agent.publish.canary import SHORTEST_S, Canary
from muster_kube.nodehealth import CanaryReport, CanaryRequest

NOON = 1_767_268_800.0


class World:
    """A canary of a node, and a clock that runs while somebody sleeps. ``most``: how many changes end the run."""

    def __init__(self, node: str = "node-1", most: int = 5) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, CanaryReport]] = []
        self.enough = asyncio.Event()
        self._most = most

        async def sleep(seconds: float) -> None:
            self.now += seconds
            await asyncio.sleep(0)

        clock = AgentClock(monotonic=lambda: self.now, wall=lambda: NOON + self.now, sleep=sleep)
        self.canary = Canary(node, clock, self.note)

    def note(self) -> None:
        self.sent.append((self.now, self.canary.report))
        if len(self.sent) >= self._most:
            self.enough.set()

    async def run(self, then: Callable[[], None] = lambda: None) -> None:
        task = asyncio.create_task(self.canary.run())
        try:
            await asyncio.wait_for(self.enough.wait(), 10)
            then()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def periodic(seconds: int) -> CanaryRequest:
    return CanaryRequest(period_seconds=seconds)


async def test_one_is_sent_each_period_at_a_time_of_the_node_s_own() -> None:
    begins = set()
    for node in ("node-1", "node-2", "node-3"):
        world = World(node)
        world.canary.apply(periodic(600), CanaryReport())
        await world.run()
        times = [at for at, _ in world.sent]
        assert 0 <= times[0] < 600
        assert [round(later - at) for at, later in itertools.pairwise(times)] == [600] * 4
        assert len({report.at for _, report in world.sent}) == 5
        begins.add(times[0])
    assert len(begins) == 3


async def test_nobody_requests_any_so_none_is_sent() -> None:
    world = World()
    world.canary.apply(CanaryRequest(), CanaryReport())
    task = asyncio.create_task(world.canary.run())
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    assert (world.sent, world.canary.report) == ([], CanaryReport())


async def test_a_period_that_ends_ends_them() -> None:
    world = World(most=2)
    world.canary.apply(periodic(60), CanaryReport())
    task = asyncio.create_task(world.canary.run())
    await world.enough.wait()
    world.canary.apply(periodic(0), CanaryReport())
    number = len(world.sent)
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    assert len(world.sent) == number


@pytest.mark.parametrize("seconds", [1, 4, -5])
async def test_a_period_below_the_least_is_lengthened_or_none(seconds: int) -> None:
    world = World(most=3)
    world.canary.apply(periodic(seconds), CanaryReport())
    if seconds > 0:
        await world.run()
        assert world.sent[2][0] - world.sent[1][0] == pytest.approx(SHORTEST_S)
    else:
        task = asyncio.create_task(world.canary.run())
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        assert world.sent == []


def test_a_request_is_served_once_however_often_it_is_seen() -> None:
    world = World()
    request = CanaryRequest(id="one")
    for _ in range(3):
        world.canary.apply(request, world.canary.report)
    assert [report.id for _, report in world.sent] == ["one"]
    world.canary.apply(CanaryRequest(id="two"), world.canary.report)
    assert [report.id for _, report in world.sent] == ["one", "two"]


async def test_a_periodic_one_does_not_replace_a_request_before_it_has_a_result() -> None:
    world = World(most=3)
    asked = CanaryRequest(id="one", period_seconds=60)
    world.canary.apply(asked, CanaryReport())
    await world.run()
    assert [report.id for _, report in world.sent[:3]] == ["one"] * 3
    world.canary.apply(CanaryRequest(id="one", period_seconds=60, result="arrived"), world.canary.report)
    world.enough.clear()
    world.sent.clear()
    await world.run()
    assert [report.id for _, report in world.sent[:3]] == [""] * 3


def test_a_request_with_a_result_is_old() -> None:
    world = World()
    world.canary.apply(CanaryRequest(id="one", result="arrived"), CanaryReport())
    assert world.sent == []


def test_a_new_process_does_not_send_again_what_its_predecessor_has_sent() -> None:
    world = World()
    before = CanaryReport(id="one", at="2026-01-01T11:00:00.000Z")
    world.canary.apply(CanaryRequest(id="one"), before)
    assert (world.sent, world.canary.report) == ([], before)

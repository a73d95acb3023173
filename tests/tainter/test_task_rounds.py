"""What is done behind the taints: when a round comes, and that what fails comes again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from muster_kube.api.errors import Unreachable
from muster_kube.api.list_decoder import ListPage
from muster_kube.api.objects import Metadata, Node
from muster_kube.controller.backoff import Backoff
from muster_tainter.task_rounds import Rounds, finish_write, yield_to_taints

GUARD_S = 60.0  # what hangs fails, what is slow does not
SOON = Backoff(0.001, 0.001)


def made(idle: asyncio.Event | None = None) -> Rounds:
    if idle is None:
        idle = asyncio.Event()
        idle.set()
    return Rounds("things", idle, least_s=0.0, backoff=SOON)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():  # noqa: ASYNC110 - nothing tells when it holds
            await asyncio.sleep(0.001)


class Server:
    """Lists two Nodes, the first ``failures`` times not."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.asked: list[object] = []

    async def list_page(self, path: str, kind: type[Node], *, params: object, **_: object) -> ListPage[Node]:
        self.asked.append((path, params))
        if len(self.asked) <= self.failures:
            raise Unreachable("no answer", path)
        items = [Node(metadata=Metadata(name=name)) for name in ("n1", "n2")]
        return ListPage(items=items, resource_version="1", continue_="", undecodable=[])


async def test_nobody_is_asked_what_is_under_way_while_a_taint_waits() -> None:
    idle, server, seen = asyncio.Event(), Server(), list[str]()
    seeing = asyncio.create_task(
        made(idle).list_marked(server, "/nodes", Node, "a-label", lambda node: seen.append(node.metadata.name))  # type: ignore[arg-type]  # as much of a client as is called
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.asked == []
    idle.set()
    await asyncio.wait_for(seeing, GUARD_S)
    assert server.asked == [("/nodes", {"labelSelector": "a-label"})]
    assert seen == ["n1", "n2"]


async def test_taints_that_never_end_hold_it_up_for_a_while_only() -> None:
    await asyncio.wait_for(yield_to_taints(asyncio.Event(), at_most_s=0.01), GUARD_S)


async def test_a_server_that_is_away_is_asked_until_it_answers() -> None:
    server, seen = Server(failures=3), list[Node]()
    await asyncio.wait_for(made().list_marked(server, "/nodes", Node, "a-label", seen.append), GUARD_S)  # type: ignore[arg-type]  # as much of a client as is called
    assert (len(server.asked), len(seen)) == (4, 2)


@pytest.mark.parametrize("error", [Unreachable("no answer", "/nodes"), ZeroDivisionError("a mistake made here")])
async def test_a_round_that_fails_comes_again_and_ends_nothing(error: Exception) -> None:
    done: list[int] = []

    async def once() -> float:
        done.append(len(done))
        if len(done) < 4:
            raise error
        return float("inf")

    running = asyncio.create_task(made().run(once))
    await until(lambda: len(done) == 4)
    running.cancel()
    assert (await asyncio.gather(running, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_what_changes_during_a_round_makes_another_one() -> None:
    each, looked = made(), list[set[str]]()

    async def once() -> float:
        looked.append(set(each.changed))
        each.changed.clear()
        if len(looked) == 1:
            each.note("n2")
        return float("inf")

    each.note("n1")
    running = asyncio.create_task(each.run(once))
    await until(lambda: len(looked) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert looked == [{"n1"}, {"n2"}], "and no round comes without a reason"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_time_alone_makes_a_round() -> None:
    done: list[int] = []

    async def once() -> float:
        done.append(1)
        return 0.001

    running = asyncio.create_task(made().run(once))
    await until(lambda: len(done) >= 3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_write_goes_on_to_its_end_when_its_leader_is_stopped() -> None:
    begun, answered, done = asyncio.Event(), asyncio.Event(), list[str]()

    async def write() -> None:
        begun.set()
        await answered.wait()
        done.append("written")

    leading = asyncio.create_task(finish_write(write()))
    await begun.wait()
    leading.cancel()
    await asyncio.sleep(0)
    assert not leading.done()
    answered.set()
    await asyncio.wait([leading])
    assert leading.cancelled()
    assert done == ["written"]


async def test_what_a_write_raises_is_raised() -> None:
    async def write() -> None:
        raise Unreachable("no answer", "/nodes/n1")

    with pytest.raises(Unreachable):
        await finish_write(write())

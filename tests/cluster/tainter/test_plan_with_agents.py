"""The fleet's plan with agents that run: each a process, whose one heavy check is an operator's own executable."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent.node_under_test import CHECK, NODES, TRAINING, NodeUnderTest
from tests.cluster.tainter.test_end_to_end import HEALTHS, Tainters, until

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import NodeShape

STARTUP = {"key": "muster.dev/startup", "effect": "NoSchedule"}


@pytest.fixture
async def tainters(control_plane: Any, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()


@pytest.fixture
def serving() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


Make = Callable[..., Awaitable[list[NodeUnderTest]]]
_places = itertools.count()


@pytest.fixture
async def tested(
    control_plane: Any, fleet: Any, api: KubeClient, tmp_path: Path, serving: contextlib.ExitStack
) -> AsyncIterator[Make]:
    """Nodes with their kubelets; their agents are started by the tests, once a tainter has made the NodeHealths."""
    made: list[NodeUnderTest] = []
    kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")

    async def make(count: int, **shape: Any) -> list[NodeUnderTest]:
        names = await fleet.create(count, prefix=f"tested-{next(_places)}", shape=NodeShape(**shape))
        nodes = [NodeUnderTest(api, name, tmp_path / name, kubeconfig) for name in names]
        made.extend(nodes)
        for node in nodes:
            serving.enter_context(node.kubelet.listens(node.socket))
            await until(node.health, "its NodeHealth is made")
        return nodes

    yield make
    for node in made:
        node.close()


async def start(tainters: Tainters, folder: Path, testing: str) -> Any:
    file = folder / "policy.yaml"
    file.write_text(f"rules: []\ntesting: {testing}\n")
    return await tainters.start("--policy", str(file))


async def holds(ask: Callable[[], Awaitable[Any]], for_s: float) -> None:
    """What must not happen gets a chance to: a slow machine can only make this pass."""
    for _ in range(int(for_s / 0.2)):
        assert await ask()
        await asyncio.sleep(0.2)


async def test_agents_are_asked_in_turn_and_each_round_costs_a_few_writes(
    tainters: Tainters, tested: Make, control_plane: Any, tmp_path: Path
) -> None:
    await start(tainters, tmp_path, "{atOnce: 1}")
    nodes = await tested(3)
    [new] = await tested(1, taints=[STARTUP])
    new.may_end()
    new.agent.start()

    async def free() -> bool:
        return all(taint["key"] != STARTUP["key"] for taint in (await new.node())["spec"].get("taints", []))

    await until(free, "the first full pass takes the startup taint off")
    await until(new.is_through, "it is tested as well")
    for node in nodes:
        node.agent.start()

    async def one() -> NodeUnderTest | None:
        return next(iter([node for node in nodes if await node.is_under_test()]), None)

    waiting = list(nodes)
    while waiting:
        now = await until(one, "one is under test")
        for node in waiting:
            await until(node.is_due, "it says what is due there")
        others = [node for node in nodes if node is not now]
        assert [node.times("begun") - node.times("ended") for node in others] == [0, 0]
        assert not any([await node.asked() for node in others])
        waiting.remove(now)
        if not waiting:
            for node in others:
                await until(node.is_through, "those before it are through")
            since = control_plane.audit.mark()
        now.may_end()
        await until(now.is_through, "it has answered, and nothing is left of it")

    async def written() -> Counter[tuple[str, str]] | None:
        asked = [each for each in control_plane.audit.requests(since) if each.name in {node.name for node in nodes}]
        made = [each for each in asked if each.verb in ("create", "update", "patch") and each.status < 300]
        counted = Counter((each.verb, each.resource) for each in made)
        through = counted["patch", "nodes"] and counted["patch", "nodehealths"]
        return counted if through and counted["patch", "nodehealths/status"] >= 2 else None

    writes = await until(written, "the writes are answered")
    # the second half of a round: what was found, with the answer or just before it; the request deleted, the label
    # taken off, and the answer, for which nobody waits any more
    assert writes.pop(("patch", "nodehealths/status")) in (2, 3)
    assert writes == {("patch", "nodehealths"): 1, ("patch", "nodes"): 1}
    assert [node.times("begun") for node in nodes] == [1, 1, 1]


async def test_a_busy_node_is_not_asked_and_one_that_becomes_busy_gives_way_and_has_its_turn_later(
    tainters: Tainters, tested: Make, tmp_path: Path
) -> None:
    await start(tainters, tmp_path, "{atOnce: 1, pause: 1s}")
    [node] = await tested(1)
    node.kubelet.answer = TRAINING
    node.agent.start()
    await until(node.is_due, "the check is due")
    assert "idleSince" not in await node.status()

    async def left_alone() -> bool:
        return not await node.asked() and node.times("begun") == 0

    await holds(left_alone, 3.0)
    node.kubelet.answer = b""
    await until(node.is_under_test, "the job is over, the node is asked")
    [first] = await node.asked()
    node.kubelet.answer = TRAINING

    async def gave_way() -> bool:
        return any(CHECK in line and "team-a/train-0" in line for line in node.agent.log.splitlines())

    await until(gave_way, "it gives way to a pod")

    async def over() -> bool:
        return first not in await node.asked() and await node.label() is None

    await until(over, "it has answered that it is busy, and the request is gone")
    [answered] = [line for line in node.agent.log.splitlines() if first in line and "Busy" in line]
    assert "UNKNOWN" in answered
    assert "pod team-a/train-0" in answered
    assert await node.is_due()
    begun = node.times("begun")
    node.may_end()
    node.kubelet.answer = b""
    await until(node.is_through, "it has its turn")
    assert (node.times("begun"), node.times("ended")) == (begun + 1, 1)


async def test_an_agent_that_is_killed_in_the_middle_of_a_test_keeps_its_place_and_tests_again(
    tainters: Tainters, tested: Make, tmp_path: Path
) -> None:
    await start(tainters, tmp_path, "{atOnce: 1}")
    first, second = await tested(2)
    first.agent.start()
    await until(first.is_under_test, "it is under test")
    request = await first.asked()

    async def noted() -> bool:
        return request[0].encode() in first.agent.state.read_bytes()

    await until(noted, "that it has begun is on disk")
    first.agent.kill()
    second.agent.start()
    await until(second.is_due, "the other one waits")

    async def kept() -> bool:
        return await first.asked() == request and not await second.asked()

    await holds(kept, 3.0)
    first.may_end()
    second.may_end()
    first.agent.start()
    await until(first.is_through, "the killed one has answered")
    await until(second.is_through, "then it was the other's turn")
    assert (first.times("begun"), second.times("begun")) == (2, 1)


@pytest.mark.parametrize("what", ["the request", "the NodeHealth", "the node from us"])
async def test_what_a_person_takes_away_in_the_middle_ends_the_test_which_comes_again(
    tainters: Tainters, tested: Make, api: KubeClient, tmp_path: Path, what: str
) -> None:
    await start(tainters, tmp_path, "{atOnce: 1}")
    [node] = await tested(1)
    node.agent.start()
    await until(node.is_under_test, "it is under test")
    first = await node.asked()
    if what == "the request":
        await api.patch(f"{HEALTHS}/{node.name}", {"spec": {"requests": None}})
    elif what == "the NodeHealth":
        await api.delete(f"{HEALTHS}/{node.name}")
    else:
        await api.patch(f"{NODES}/{node.name}", {"metadata": {"labels": {"muster.dev/managed": "false"}}})

        async def left() -> bool:
            return not await node.asked() and await node.label() is None

        await until(left, "its request and label are taken back")
        await api.patch(f"{NODES}/{node.name}", {"metadata": {"labels": {"muster.dev/managed": None}}})

    async def again() -> bool:
        asked = await node.asked()
        return len(asked) == 1 and asked != first and node.times("begun") == 2

    await until(again, "it is asked again")
    node.may_end()
    await until(node.is_through, "it is tested")
    assert (node.times("begun"), node.times("ended")) == (2, 1)

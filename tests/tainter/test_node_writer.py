"""The order of the requests for one decision, and whose writes without an answer are reported."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.errors import ApiError, Forbidden, Unreachable
from muster_kube.api.objects import Metadata, Node, Taint
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_tainter.events.latency import HopLatency
from muster_tainter.faults.desired_state import Decision
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.node_writer import NodeWriter

NODE = Node(metadata=Metadata(name="n1", resource_version="1"))
TAINT = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
RECORD: dict[str, str | None] = {"muster.dev/faults": "{}"}
ALONE = frozenset({"gpu/0000:13:00.0"})


def make_writer(
    patch: Callable[..., Awaitable[Node]], begin: Callable[[Node, Decision], None] = lambda *_: None
) -> NodeWriter:
    """Of a fleet in which n1 is."""
    budgets: Any = SimpleNamespace(confirm=lambda _: None, handle_failure=lambda *_: None)
    devices: Any = SimpleNamespace(patch_begins=begin, patch_ended=lambda _name, **_: None)
    fleet: Any = FakeFleet(nodes={"n1": NODE})
    fleet.slim = lambda node: node
    replica, metrics = Replica(may_write=lambda: True), TainterMetrics()
    latency = HopLatency(metrics, replica.now)
    client: Any = SimpleNamespace(patch=patch)
    return NodeWriter(client, fleet, replica, metrics, budgets, latency, devices)


@pytest.mark.parametrize(
    ("decision", "order"),
    [
        (Decision(annotations=RECORD, isolates=ALONE), ["rules", "node"]),
        (Decision(annotations=RECORD, isolates=ALONE, taints=(TAINT,)), ["node", "rules"]),
        (Decision(annotations=RECORD, taints=(TAINT,)), ["node"]),
    ],
)
async def test_what_keeps_pods_off_is_requested_first(decision: Decision, order: list[str]) -> None:
    requests: list[str] = []
    answered = asyncio.Event()
    queue = WorkQueue[str]()

    async def patch(*_args: Any, **_named: Any) -> Node:
        requests.append("node")
        await answered.wait()
        return NODE

    async def write_rules(_name: str) -> None:
        requests.append("rules")

    def begin(_node: Node, decided: Decision) -> None:
        if decided.isolates:
            queue.add("n1")

    writer = make_writer(patch, begin)
    async with asyncio.TaskGroup() as group:
        group.create_task(run_workers(queue, write_rules, workers=1))
        await asyncio.sleep(0)  # the worker waits
        writing = group.create_task(writer.write(NODE, decision))
        while len(requests) < len(order):  # noqa: ASYNC110 - of two tasks
            await asyncio.sleep(0)
        answered.set()
        await writing
        queue.shut_down()
    assert requests == order


AWAY = Unreachable("no answer", "/nodes/n1")


@pytest.mark.parametrize(
    ("error", "node", "then", "reported"),
    [
        (AWAY, "n1", lambda _: None, True),
        (ApiError(504, "Timeout", "etcd", "/nodes/n1"), "n1", lambda _: None, True),
        (Forbidden(403, "Forbidden", "no", "/nodes/n1"), "n1", lambda _: None, False),
        (AWAY, "deleted", lambda _: None, False),
        (AWAY, "n1", lambda writer: writer.forget("n1"), False),
        (AWAY, "n1", NodeWriter.begin_term, False),
    ],
)
async def test_a_write_without_an_answer_is_reported_in_its_own_term_while_its_node_is_there(
    error: ApiError, node: str, then: Callable[[NodeWriter], None], reported: bool
) -> None:
    async def patch(*_args: Any, **_named: Any) -> Node:
        raise error

    writer, decision = make_writer(patch), Decision(annotations=RECORD)
    with pytest.raises(type(error)):
        await writer.write(Node(metadata=Metadata(name=node, resource_version="1")), decision)
    then(writer)
    shown = Node(metadata=Metadata(name=node, resource_version="2", annotations={"muster.dev/faults": "{}"}))
    assert writer.report_made(shown) is (decision if reported else None)

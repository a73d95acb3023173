"""The order of the requests for one decision."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.tainter.fake_fleet import FakeFleet

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

    nothing: Any = SimpleNamespace(confirm=lambda _: None)
    devices: Any = SimpleNamespace(patch_begins=begin, patch_ended=lambda _name, **_: None)
    fleet: Any = FakeFleet()
    fleet.slim = lambda node: node
    replica, metrics = Replica(may_write=lambda: True), TainterMetrics()
    latency = HopLatency(metrics, replica.now)
    client: Any = SimpleNamespace(patch=patch)
    writer = NodeWriter(client, cast("Any", fleet), replica, metrics, nothing, latency, devices)
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

"""A new leader whose watch of NodeHealths is behind what its predecessor decided by: no fault ends by a report from
before it."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import FakeApi, Reply, Stream, Wire

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Node
from muster_kube.nodehealth import PATH, NodeHealth
from muster_tainter.controller import Tainter
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.record.node_record import ANNOTATION, decode_record
from muster_tainter.fleet.interface import NODES_PATH
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy

BOOT = "rules: [{name: all, match: {verdict: FAIL}, action: taint, closeOn: [boot], holdDown: 0s}]\n"
PASSING = "rules: [{name: all, match: {verdict: FAIL}, action: taint, for: 10m}]\n"


class ApiWithALag:
    """An API server with one node, whose cache has a NodeHealth from before the fault that stands in the Node.

    newest: what etcd has
    """

    def __init__(self, node: dict[str, Any], old: NodeHealth, newest: NodeHealth) -> None:
        self.api = FakeApi()
        self._node = node
        listed = {NODES_PATH: node, PATH: _built(old, 5)}
        for path, item in listed.items():
            page = {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": [item]}
            self.api.on("GET", path, lambda _, page=page: Reply(200, page))
            self.api.on("WATCH", path, Stream())
        self.api.on("GET", f"{PATH}/n1", lambda _: Reply(200, _built(newest, 20)))
        self.api.on("PATCH", f"{NODES_PATH}/n1", lambda _: Reply(200, node))

    async def decisions(self, policy: Policy) -> list[dict[str, Any]]:
        """What a new leader writes to the Node until it has read the NodeHealth, and decided."""
        await self.api.start()
        config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{self.api.port}")
        async with KubeClient(config, timeout_s=30.0) as client:
            replica = Replica(may_write=lambda: True)
            tainter = Tainter(Connections.shared(client), lambda: policy, replica, TainterMetrics())
            tasks = [asyncio.create_task(each) for each in (tainter.watch(), tainter.lead())]
            await Wire.until(lambda: self._read() or self._written())
            await Wire.until(lambda: not any(tainter._depths().values()) and not tainter._in_hand)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.stop()
        return self._written()

    def _read(self) -> bool:
        return bool(self.api.asked_for("GET", f"{PATH}/n1"))

    def _written(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(asked.body) for asked in self.api.asked_for("PATCH", f"{NODES_PATH}/n1")]


def _built(health: NodeHealth, version: int) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(health)
    return built | {"metadata": built["metadata"] | {"resourceVersion": str(version)}}


def _decided(node: Node, health: NodeHealth, policy: Policy) -> dict[str, Any]:
    """The Node as the predecessor left it."""
    decision = decide(node, health, policy, time.time())
    return {
        "metadata": {
            "name": "n1", "uid": "u1", "resourceVersion": "7",
            "labels": {key: value for key, value in decision.labels.items() if value is not None},
            "annotations": {key: value for key, value in decision.annotations.items() if value is not None},
        },
        "spec": {"taints": [msgspec.to_builtins(taint) for taint in decision.taints or ()]},
    }  # fmt: skip


@pytest.mark.parametrize(("text", "old_boot"), [(BOOT, "boot-0"), (PASSING, "boot-1")])
async def test_a_report_from_before_the_fault_does_not_end_it(make: Any, text: str, old_boot: str) -> None:
    policy = parse_policy(text)
    failing = make.health(make.finding(), boot="boot-1")
    node = _decided(make.node(), failing, policy)
    assert len(decode_record(node["metadata"]["annotations"][ANNOTATION]).open) == 1
    api = ApiWithALag(node, make.health(boot=old_boot), failing)
    assert await api.decisions(policy) == []


@pytest.mark.parametrize(("text", "boot"), [(BOOT, "boot-2"), (PASSING, "boot-1")])
async def test_a_report_that_is_the_newest_ends_it(make: Any, text: str, boot: str) -> None:
    policy = parse_policy(text)
    node = _decided(make.node(), make.health(make.finding(), boot="boot-1"), policy)
    well = make.health(boot=boot)
    (written, *_) = await ApiWithALag(node, well, well).decisions(policy)
    record = decode_record(written["metadata"]["annotations"][ANNOTATION])
    assert record.open == ()
    assert [(closed.reason, closed.occurrence) for closed in record.closed] == [("Xid79", 1)]

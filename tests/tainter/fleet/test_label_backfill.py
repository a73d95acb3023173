"""Labels that a policy names while the tainter runs: nodes were stored without them, and are decided about."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Asked, FakeApi, Reply, Stream, Wire

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Node
from muster_kube.nodehealth import PATH
from muster_tainter.controller import Tainter
from muster_tainter.fleet.interface import NODES_PATH
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy

STARTUP = {"key": "muster.dev/startup", "effect": "NoSchedule"}
LISTED: dict[str, Any] = {"name": "n1", "uid": "u1", "resourceVersion": "5", "labels": {"size": "big", "team": "ml"}}
NODE = {"metadata": LISTED, "spec": {"taints": [STARTUP]}}
HEALTH = {
    "metadata": {"name": "n1", "uid": "h1", "resourceVersion": "5"},
    "status": {"verdict": "PASS", "bootID": "b", "agent": {"podUID": "p"}, "due": ["dcgm"],
               "idleSince": "2026-01-01T00:00:00Z"},
}  # fmt: skip


def policy(label: str, *, at_once: int = 0) -> Policy:
    values = f"{{{label}: {LISTED['labels'][label]}}}"
    pool = f"{{name: a, selector: {{matchLabels: {values}}}, testing: {{atOnce: {at_once}, preFlight: [pciebw]}}}}"
    return parse_policy(f"{{rules: [], testing: {{atOnce: 5}}, pools: [{pool}]}}")


def listed(*items: dict[str, Any]) -> Reply:
    return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": list(items)})


class Bench:
    """A tainter that leads over one new node. When labels are listed late, the API server fails at first."""

    def __init__(self, api: FakeApi, client: KubeClient) -> None:
        self.api = api
        self.late = [Reply(500, {}), listed(NODE)]
        self.current = policy("size")
        api.on("GET", NODES_PATH, self.nodes)
        api.on("GET", PATH, lambda asked: listed() if "labelSelector" in asked.query else listed(HEALTH))
        for path in (NODES_PATH, PATH):
            api.on("WATCH", path, Stream())
        api.on("PATCH", f"{NODES_PATH}/n1", self.take)
        self.tainter = Tainter(
            Connections.shared(client), lambda: self.current, Replica(may_write=lambda: True), TainterMetrics()
        )

    def nodes(self, asked: Asked) -> Reply:
        if "labelSelector" in asked.query:
            return listed()  # none is tainted
        return listed(NODE) if "resourceVersion" in asked.query else self.late.pop(0)

    @staticmethod
    def take(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        changed = {"labels": LISTED["labels"] | body["metadata"].get("labels", {}), "resourceVersion": "10"}
        return Reply(200, {"metadata": LISTED | changed, "spec": NODE["spec"] | body.get("spec", {})})

    def send(self, metadata: dict[str, Any]) -> None:
        """By a write that others have made."""
        self.tainter.fleet.node_watch.observe(msgspec.convert({"metadata": metadata}, Node))

    def change(self, new: Policy) -> None:
        self.current = new
        self.tainter.policy_changed()

    def taints_written(self) -> list[object]:
        asked = self.api.asked_for("PATCH", f"{NODES_PATH}/n1")
        return [body["spec"] for each in asked if "spec" in (body := json.loads(each.body))]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        made = Bench(api, client)
        parts = [asyncio.create_task(part) for part in (made.tainter.watch(), made.tainter.lead())]
        yield made
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    await api.stop()


async def test_a_new_node_is_held_while_it_is_not_known_whether_a_pool_s_checks_are_for_it(bench: Bench) -> None:
    await Wire.until(lambda: bench.api.asked_for("PATCH", f"{NODES_PATH}/n1"))  # its health is labelled
    bench.change(policy("team", at_once=1))
    await Wire.until(lambda: bench.api.asked_for("PATCH", f"{PATH}/n1"))
    [request] = json.loads(bench.api.asked_for("PATCH", f"{PATH}/n1")[0].body)["spec"]["requests"]
    assert request["checks"] == ["pciebw"]
    assert bench.taints_written() == []


async def test_a_policy_that_comes_back_finds_the_labels_of_nodes_that_changed_meanwhile(bench: Bench) -> None:
    await Wire.until(lambda: bench.api.asked_for("PATCH", f"{NODES_PATH}/n1"))  # its health is labelled
    first = bench.current
    bench.change(parse_policy("{rules: [], testing: {atOnce: 0}}"))
    bench.send(LISTED | {"resourceVersion": "20", "annotations": {"muster.dev/faults": "{}"}})
    await Wire.until(lambda: (node := bench.tainter.fleet.node("n1")) and node.metadata.resource_version == "20")
    bench.change(first)
    node = bench.tainter.fleet.node("n1")
    assert node is not None
    assert node.metadata.labels["size"] == "big"

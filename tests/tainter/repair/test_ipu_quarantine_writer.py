"""Entries of the ConfigMap go only for what the Node says now, and not for what an old view of it lacks."""

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.kube.conftest import FakeApi, Reply, Stream, Wire
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.repair.test_ipu_quarantine_plan import NOW, POLICY, fault, node, reasons

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Node
from muster_tainter.fleet.replica import Replica
from muster_tainter.repair.ipu_quarantine_plan import NAME, plan_quarantine
from muster_tainter.repair.ipu_quarantine_writer import IpuQuarantineWriter

NODE, MAPS = "/api/v1/nodes/host-1", "/api/v1/namespaces/muster/configmaps"
KEY = "10.1.5.7_2"


class World:
    """A ConfigMap with one entry, of the leader before; a Node as the server has it, and as the watch has."""

    def __init__(self, entry: str, newest: Node | None) -> None:
        self.api = FakeApi()
        self.map = {"metadata": {"name": NAME, "namespace": "muster", "resourceVersion": "5"}, "data": {KEY: entry}}
        page = {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": [self.map]}
        self.api.on("GET", MAPS, Reply(200, page))
        self.api.on("WATCH", MAPS, Stream())
        self.api.on("PATCH", f"{MAPS}/{NAME}", lambda asked: self._patched(msgspec.json.decode(asked.body)))
        found = Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        self.api.on("GET", NODE, found if newest is None else Reply(200, msgspec.to_builtins(newest)))
        self.fleet = FakeFleet(current=POLICY, nodes={"host-1": node()})
        self.fleet.observe_node = self.observe

    def observe(self, newer: Node) -> None:
        self.fleet.nodes = {**self.fleet.nodes, newer.metadata.name: newer}

    def _patched(self, body: dict[str, Any]) -> Reply:
        version = str(int(self.map["metadata"]["resourceVersion"]) + 1)
        data = {key: value for key, value in (self.map["data"] | body["data"]).items() if value is not None}
        self.map = {"metadata": self.map["metadata"] | {"resourceVersion": version}, "data": data}
        return Reply(200, self.map)

    def reads(self) -> int:
        return len(self.api.asked_for("GET", NODE))

    async def settle(self) -> None:
        """Under a new leader, until it has looked at the node anew, or written, and is at rest."""
        await self.api.start()
        config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{self.api.port}")
        async with KubeClient(config, timeout_s=30.0) as client:
            replica = Replica(may_write=lambda: True, now=lambda: NOW, namespace="muster")
            writer = IpuQuarantineWriter(client, self.fleet, replica, CollectorRegistry())
            rounds = 0
            once = writer._once

            async def counted(there: Any) -> float:
                nonlocal rounds
                look_at = await once(there)
                rounds += 1
                return look_at

            writer._once = counted  # type: ignore[method-assign]
            running = asyncio.create_task(writer.run())
            await Wire.until(lambda: rounds >= 2 or not self.map["data"])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await self.api.stop()


def entry_of(bad: Node) -> str:
    return plan_quarantine(reasons(bad), POLICY).data[KEY]


async def test_a_node_view_from_before_the_fault_removes_no_entry() -> None:
    bad = node(fault())
    world = World(entry_of(bad), newest=bad)
    await world.settle()
    assert world.map["data"] == {KEY: entry_of(bad)}
    assert world.reads() == 1


@pytest.mark.parametrize("gone", [False, True])
async def test_an_entry_goes_with_its_fault_and_with_its_node(gone: bool) -> None:
    world = World(entry_of(node(fault())), newest=None if gone else node())
    await world.settle()
    assert world.map["data"] == {}
    assert world.reads() == 1


async def test_an_entry_that_is_not_ours_goes() -> None:
    world = World("what somebody wrote", newest=node())
    await world.settle()
    assert world.map["data"] == {}
    assert world.reads() == 0


async def test_a_node_that_cannot_be_read_keeps_its_entry_and_holds_up_no_other() -> None:
    world = World(entry_of(node(fault())), newest=node())
    world.api.on("GET", NODE, Reply(500, {"kind": "Status", "code": 500, "reason": "InternalError"}))
    world.observe(node(fault(component="ipu/10.1.5.7/3"), name="host-2"))
    await world.settle()
    assert set(world.map["data"]) == {KEY, "10.1.5.7_3"}


@pytest.mark.parametrize("name", ["", "../pods", "HOST"])
async def test_a_name_that_no_node_has_is_not_read(name: str) -> None:
    entry = msgspec.json.decode(entry_of(node(fault())))
    entry["faults"][0]["node"] = name
    world = World(msgspec.json.encode(entry).decode(), newest=node())
    await world.settle()
    assert world.map["data"] == {}
    assert world.api.asked_for("GET") == world.api.asked_for("GET", MAPS)

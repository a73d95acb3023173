"""The leader's rounds: which writes, in which state of the world."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.visibility.capacities import AWAY, Proxy, capacity_of, controller, node

from muster_kube.api.errors import ApiError, Forbidden, NotFound
from muster_kube.controller.leader_client import NotLeading
from muster_operator.observe.node_capacity import FleetNode, project_node
from muster_operator.visibility.advertisement import Advertising
from muster_operator.visibility.advertiser import IpuAdvertiser
from muster_operator.visibility.ipu_capacity import STALE_S, IpuCapacity


class Cluster:
    """Nodes that a patch of labels changes. errors: by path."""

    def __init__(self, *nodes: FleetNode) -> None:
        self.store = {each.metadata.name: each for each in nodes}
        self.errors: dict[str, ApiError] = {}
        self.written: list[str] = []

    async def patch(self, path: str, body: Any, **_: Any) -> FleetNode:
        if path in self.errors:
            raise self.errors[path]
        self.written.append(path)
        found = self.store[path.rpartition("/")[2]]
        labels = {key: value for key, value in (found.metadata.labels | body["metadata"]["labels"]).items() if value}
        return node(found.metadata.name, **{key.replace("/", "_"): value for key, value in labels.items()})

    def observe(self, changed: FleetNode) -> None:
        self.store[changed.metadata.name] = project_node(changed)

    def advertiser(self, capacity: IpuCapacity) -> IpuAdvertiser:
        client: Any = self
        nodes: Any = SimpleNamespace(store=self.store, observe=self.observe)
        return IpuAdvertiser(client, nodes, capacity, Advertising("labels"))

    def free(self) -> dict[str, str | None]:
        return {name: each.metadata.labels.get("muster.dev/ipus-free") for name, each in self.store.items()}


async def test_a_round_writes_what_differs_and_the_next_one_nothing() -> None:
    proxy = Proxy(controller("a", 4), controller("b", 8))
    capacity, cluster = capacity_of(proxy), Cluster(node("a1", "a"), node("b1", "b"), node("cpu"))
    await capacity.refresh()
    advertiser = cluster.advertiser(capacity)
    assert not await advertiser.write_all()
    assert cluster.free() == {"a1": "4", "b1": "8", "cpu": None}
    cluster.written.clear()
    assert not await advertiser.write_all()
    assert cluster.written == []
    proxy.answer = [controller("a", 3), controller("b", 8)]
    await capacity.refresh()
    await advertiser.write_all()
    assert cluster.written == ["/api/v1/nodes/a1"]


async def test_numbers_stay_while_the_proxy_may_still_answer_and_go_when_they_are_stale() -> None:
    proxy = Proxy()
    proxy.answer = AWAY
    capacity, cluster = capacity_of(proxy), Cluster(node("a1", "a", **{"muster.dev_ipus-free": "4"}))
    advertiser = cluster.advertiser(capacity)
    await capacity.refresh()
    await advertiser.write_all()
    assert cluster.free() == {"a1": "4"}
    proxy.now = STALE_S
    await advertiser.write_all()
    assert cluster.free() == {"a1": None}


async def test_a_write_that_fails_is_reported_once_and_keeps_no_other_from_its_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capacity = capacity_of(Proxy(controller("a", 4)))
    cluster = Cluster(*(node(f"a{number}", "a") for number in range(10)))
    await capacity.refresh()
    advertiser = cluster.advertiser(capacity)
    gone, refused = "/api/v1/nodes/a0", "/api/v1/nodes/a1"
    cluster.errors = {
        gone: NotFound(404, "NotFound", "gone", gone),
        refused: Forbidden(403, "Forbidden", "may not", refused),
        "/api/v1/nodes/a2": NotLeading("/api/v1/nodes/a2"),
    }
    assert await advertiser.write_all()
    assert await advertiser.write_all()
    assert len([each for each in caplog.records if "may not" in each.getMessage()]) == 1
    assert len(cluster.written) == 7
    del cluster.errors[refused]
    assert not await advertiser.write_all()

"""Evictions: asked for by the version that the server has, again later where it says no, and no longer than need be."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.tainter.repair.fake_cluster import FakeCluster

from muster_kube.api.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from muster_kube.api.list_decoder import ListPage
from muster_kube.controller.reflector import LIST_SILENCE_S
from muster_tainter.faults.messages import Notice
from muster_tainter.policy.file import parse_policy
from muster_tainter.repair.evictor import Evictor, drain_evictions
from muster_tainter.repair.node_drains import NodeDrains
from muster_tainter.repair.pod_eviction import PodEviction

POLICY = parse_policy("""
rules: [{name: all, match: {class: [reset]}, action: taint}]
pools: [{name: all, selector: {}, drain: {when: now}}]
""")
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


@dataclass
class Server:
    """Pods of one node, and what each eviction is answered with: an error, or None."""

    version: str = "v1"
    answers: dict[str, ApiError | None] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    lists: int = 0
    between: Callable[[], None] = lambda: None

    async def get(self, path: str, *, type: Any, **_: Any) -> Any:
        assert path == "/api/v1"
        resources = [{"name": "pods"}, {"name": "pods/eviction", "group": "policy", "version": self.version}]
        return msgspec.convert({"resources": resources}, type)

    async def list_page(self, path: str, kind: Any, *, params: dict[str, Any], timeout_s: float | None = None) -> Any:
        assert (path, params["fieldSelector"]) == ("/api/v1/pods", "spec.nodeName=n1")
        # from etcd, the API server reads the pods of the whole cluster
        assert "resourceVersion" in params or (timeout_s or 0.0) >= LIST_SILENCE_S
        self.lists += 1
        pods = [
            {"metadata": {"name": n, "namespace": "team", "uid": f"uid-{n}"}, "spec": {"nodeName": "n1"}}
            for n in self.answers
        ]
        return ListPage([msgspec.convert(pod, kind) for pod in pods], "1")

    async def create(self, path: str, body: Any, **_: Any) -> None:
        name = path.split("/")[-2]
        self.asked.append((name, body["apiVersion"], body["deleteOptions"]["preconditions"]["uid"]))
        answer = self.answers[name]
        self.between()
        if answer is not None:
            raise answer
        del self.answers[name]


@dataclass
class Bed:
    world: FakeCluster
    server: Server
    evictor: Evictor

    @property
    def told(self) -> list[Notice]:
        return [notice for _, notice in self.world.told]

    def look(self, later: float = 0.0) -> float:
        """Seconds until the next look."""
        self.world.now += later
        return asyncio.run(self.evictor.look()) - self.world.now


def bed(*pods: str, version: str = "v1") -> Bed:
    world = FakeCluster()
    world.add("n1")
    world.open_fault("n1")
    world.catch_up()
    server = Server(version, dict.fromkeys(pods))
    fleet = world.fleet(POLICY)
    registry, replica = CollectorRegistry(), world.replica()
    drains = NodeDrains(server, fleet, replica.now)  # type: ignore[arg-type]  # as much of a client as is called
    eviction = PodEviction(server, drain_evictions(registry))  # type: ignore[arg-type]
    evictor = Evictor(drains, eviction, fleet, replica, registry)
    evictor.look_at_all()
    return Bed(world, server, evictor)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_eviction_that_the_server_has_is_asked_for_that_very_pod(version: str) -> None:
    made = bed("a", "b", version=version)
    made.look()
    assert sorted(made.server.asked) == [("a", f"policy/{version}", "uid-a"), ("b", f"policy/{version}", "uid-b")]
    assert not made.evictor.is_empty("n1")
    made.look(3)
    assert made.evictor.is_empty("n1")
    assert [notice.reason for notice in made.told] == ["NodeDraining", "NodeDrained"]


def test_a_pod_that_the_first_list_lacked_is_evicted_too() -> None:
    made = bed()
    again = made.look()
    assert made.evictor.is_empty("n1")
    made.server.answers["late"] = None  # bound before the taint; the API server's cache was behind
    assert 0 < again <= 60
    made.look(again)
    assert [name for name, *_ in made.server.asked] == ["late"]
    # a node that was empty twice is left alone
    waits = [made.look(again) for again in (3, 31)]
    assert made.server.lists == 4
    assert waits[-1] == float("inf")


def test_a_budget_that_says_no_is_asked_again_ever_later_and_told_once() -> None:
    made = bed("a")
    made.server.answers["a"] = TooManyRequests(429, "TooManyRequests", BUDGET, "")
    waits = [made.look(61.0 * 1.5) for _ in range(12)]
    assert len(made.server.asked) == 12
    assert waits[0] < 10
    assert all(20 <= wait <= 90 for wait in waits[6:])
    assert [notice.reason for notice in made.told] == ["NodeDraining", "DrainBlocked"]
    assert BUDGET in made.told[-1].message
    made.server.answers["a"] = None
    made.look(91)
    made.look(3)
    assert made.evictor.is_empty("n1")


@pytest.mark.parametrize("error", [
    ApiError(500, "InternalError", "found more than one PodDisruptionBudget", ""),
    Forbidden(403, "Forbidden", "namespace is being terminated", ""),
])  # fmt: skip
def test_what_else_refuses_one_pod_holds_up_no_other(error: ApiError) -> None:
    made = bed("a", "b", "c")
    made.server.answers["b"] = error
    made.look()
    assert list(made.server.answers) == ["b"]
    assert made.told[-1].reason == "DrainBlocked"


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "", ""), Conflict(409, "Conflict", "another uid", "")])
def test_a_pod_that_is_another_one_by_now_is_not_insisted_on(error: ApiError) -> None:
    made = bed("a")
    made.server.answers["a"] = error
    made.look()
    assert [notice.reason for notice in made.told] == ["NodeDraining"]


@pytest.mark.parametrize("what", ["closed", "paused", "held"])
def test_it_stops_between_two_evictions(what: str) -> None:
    made = bed(*(f"p{n}" for n in range(30)))

    def happen() -> None:
        if what == "paused":
            made.world.withheld = "paused by ada"
        elif what == "closed":
            made.world.close_faults("n1")
        else:
            memory = made.world.memory("n1")
            held = msgspec.structs.replace(memory.open[0], over="2027-01-15T08:00:00Z", how="driver")
            made.world.remember("n1", msgspec.structs.replace(memory, open=(held,)))
        made.world.catch_up()

    made.server.between = happen
    made.look()
    assert 1 <= len(made.server.asked) <= 8  # those that were under way


def test_nothing_is_asked_while_it_is_paused_nor_of_a_node_that_is_well() -> None:
    made = bed("a")
    made.world.withheld = "paused by ada"
    made.look()
    assert (made.server.asked, made.server.lists) == ([], 1)
    made.world.close_faults("n1")
    made.world.catch_up()
    made.evictor.note("n1")
    assert made.look(60) == float("inf")
    assert made.server.lists == 1


def test_a_server_that_does_not_answer_is_asked_again_later() -> None:
    made = bed("a")
    made.server.between = lambda: None
    broken = made.server.list_page

    async def fails(*_: Any, **__: Any) -> Any:
        raise ApiError(503, "ServiceUnavailable", "away", "")

    made.server.list_page = fails  # type: ignore[method-assign]
    assert made.look() < 10
    made.server.list_page = broken  # type: ignore[method-assign]
    made.look(61)
    assert made.server.asked


def test_the_look_before_a_repair_is_from_etcd_and_may_take_as_long_as_a_list() -> None:
    made = bed("a")
    made.look()
    made.server.answers = {"b": None}  # a pod that has come since
    assert not asyncio.run(made.evictor.look_anew("n1"))

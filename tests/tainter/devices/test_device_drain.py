"""The pods that hold a quarantined device are drained as their pool says, and no others on the node."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.tainter.devices.device_world import API, POLICY, Leader, finding, gpu, health, world
from tests.tainter.devices.test_holders import Api, claim, greedy_pod, pod

from muster_kube.api.errors import TooManyRequests
from muster_kube.api.list_decoder import UndecodableObject
from muster_kube.api.times import rfc3339_whole
from muster_tainter.devices.holders.drains import DeviceDrains
from muster_tainter.devices.holders.reader import PODS_LIMIT, HolderReader, TooManyPods
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.fleet.replica import Replica
from muster_tainter.repair.evictor import Evictor, drain_evictions
from muster_tainter.repair.pod_eviction import PodEviction

POOL = "pools: [{name: all, selector: {}, drain: {%s}}]\n"
NOW = POLICY + POOL % "when: now"
DRAIN_RULE = POLICY.replace("action: taint}\ndevices", "action: drain, isolate: device}\ndevices")


@dataclass
class Server(Api):
    """refused: pods that a PodDisruptionBudget keeps."""

    refused: set[str] = field(default_factory=set)
    evicted: list[str] = field(default_factory=list)

    async def get(self, path: str, *, type: Any) -> Any:
        if path == "/api/v1":
            return msgspec.convert({"resources": [{"name": "pods/eviction", "version": "v1"}]}, type)
        return await super().get(path, type=type)

    async def create(self, path: str, body: Any, *, type: Any) -> Any:
        name = path.split("/")[-2]
        assert body["deleteOptions"]["preconditions"]["uid"] == f"uid-{name}"
        if name in self.refused:
            raise TooManyRequests(429, "TooManyRequests", "no", path)
        self.evicted.append(name)
        self.pods = [each for each in self.pods if each["metadata"]["name"] != name]


def two_jobs(**sick: Any) -> Server:
    """One pod holds the second GPU, which gets ill, and one the third."""
    pods = [pod("sick", "c1", **sick), pod("well", "c2"), pod("none")]
    return Server(pods, [claim("c1", "sick", "gpu-1"), claim("c2", "well", "gpu-2")])


@dataclass
class Bed:
    server: Server
    leader: Leader
    evictor: Evictor
    now: float

    def look(self, later: float = 0.0) -> list[str]:
        self.now += later
        asyncio.run(self.evictor.look())
        return self.server.evicted

    @property
    def events(self) -> list[str]:
        return [notice.reason for _, notice in self.leader.fleet.notices if "Drain" in notice.reason]


def bed(server: Server, policy: str = NOW, *, number: int = 1) -> Bed:
    leader = world(policy)
    asyncio.run(leader.settle(health(finding(number))))
    for rule in leader.api.rules.values():
        rule["metadata"]["creationTimestamp"] = rfc3339_whole(leader.now)
    leader.see_rules()
    reader = HolderReader(server)  # type: ignore[arg-type]
    reader.use(API)
    made: Bed
    replica = Replica(lambda: True, now=lambda: made.now, clock=lambda: made.now)
    drains = DeviceDrains(reader, leader.fleet, leader.store, replica.now)
    registry = CollectorRegistry()
    eviction = PodEviction(server, drain_evictions(registry))  # type: ignore[arg-type]
    made = Bed(server, leader, Evictor(drains, eviction, leader.fleet, replica, registry), leader.now)
    made.evictor.look_at_all()
    return made


def test_only_the_pod_that_holds_the_device_is_evicted_and_then_the_device_is_idle() -> None:
    made = bed(two_jobs())
    assert made.look() == ["sick"]
    assert not made.evictor.is_empty("n1", gpu(1))
    assert made.look(later=3.0) == ["sick"]
    assert made.evictor.is_empty("n1", gpu(1))
    assert made.events == ["DeviceDraining", "DeviceDrained"]


@pytest.mark.parametrize(
    ("policy", "later", "evicted"),
    [
        (POLICY, 86_400.0, []),
        (POLICY + POOL % "when: completion", 86_400.0, []),
        (POLICY + POOL % "when: after, after: 30m", 1790.0, []),
        (POLICY + POOL % "when: after, after: 30m", 1810.0, ["sick"]),
        (NOW, 0.0, ["sick"]),
        (DRAIN_RULE, 0.0, ["sick"]),
        (NOW.replace("quarantine: rules", "quarantine: preview"), 0.0, []),
        (NOW.replace("action: taint}\ndevices", "action: taint, taint: {effect: NoExecute}}\ndevices"), 0.0, []),
    ],
)
def test_the_pool_or_the_rule_decides_when(policy: str, later: float, evicted: list[str]) -> None:
    assert bed(two_jobs(), policy).look(later) == evicted


def test_the_time_counts_from_the_rule_not_from_the_fault() -> None:
    made = bed(two_jobs(), POLICY + POOL % "when: after, after: 30m")
    for rule in made.leader.api.rules.values():
        rule["metadata"]["creationTimestamp"] = rfc3339_whole(made.now + 3600.0)  # a budget had withheld it
    made.leader.seen.clear()
    made.leader.see_rules()
    assert made.look(later=1900.0) == []
    assert made.look(later=3600.0) == ["sick"]


TOLERATES = [{"key": "muster.dev/faulty", "operator": "Exists", "effect": "NoSchedule"}]
OTHERS = [{"key": "example.com/other", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("result", "evicted", "idle"),
    [
        ({"tolerations": TOLERATES}, [], False),  # its claim would get the device again
        ({"tolerations": OTHERS}, ["sick"], False),
        ({"adminAccess": True}, [], True),  # it watches the device, and holds nothing
        ({"pool": "n2"}, [], True),
    ],
)
def test_what_the_claim_was_given_decides(result: dict[str, Any], evicted: list[str], idle: bool) -> None:
    made = bed(Server([pod("sick", "c1")], [claim("c1", "sick", "gpu-1", **result)]))
    assert made.look() == evicted
    assert made.evictor.is_empty("n1", gpu(1)) is idle


def test_a_daemonset_keeps_its_pod_and_its_device_is_not_idle() -> None:
    server = two_jobs()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    server.pods[0]["metadata"]["ownerReferences"] = [owner]
    made = bed(server)
    assert made.look() == []
    assert not made.evictor.is_empty("n1", gpu(1))


def test_a_pod_that_is_ending_is_waited_for() -> None:
    server = two_jobs()
    server.pods[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = bed(server)
    assert made.look() == []
    assert not made.evictor.is_empty("n1", gpu(1))
    server.pods.pop(0)
    made.look(later=3.0)
    assert made.evictor.is_empty("n1", gpu(1))


def test_a_budget_of_the_owner_is_asked_again_later() -> None:
    server = two_jobs()
    server.refused.add("sick")
    made = bed(server)
    made.look()
    assert made.events == ["DeviceDraining", "DeviceDrainBlocked"]
    server.refused.clear()
    assert made.look(later=91.0) == ["sick"]


def test_a_pause_evicts_nobody() -> None:
    made = bed(two_jobs())
    made.leader.fleet.withheld = lambda: "paused by ada"
    assert made.look() == []


def test_a_resolved_fault_that_is_held_evicts_nobody() -> None:
    made = bed(two_jobs())
    node = made.leader.api.nodes["n1"]
    record = read_record(node)
    held = tuple(msgspec.structs.replace(fault, over=rfc3339_whole(made.now)) for fault in record.open)
    text = msgspec.json.encode({"open": held}).decode()
    meta = msgspec.structs.replace(node.metadata, annotations={"muster.dev/faults": text})
    made.leader.api.nodes["n1"] = msgspec.structs.replace(node, metadata=meta)
    assert made.look() == []


@pytest.mark.parametrize(
    "others",
    [
        [pod(f"ended-{number}", f"c-{number}", phase="Failed") for number in range(PODS_LIMIT + 1)],
        [pod(f"done-{number}", f"c-{number}", phase="Succeeded") for number in range(PODS_LIMIT + 1)],
        [pod(f"plain-{number}") for number in range(PODS_LIMIT + 1)],
    ],
)
def test_pods_that_can_hold_nothing_do_not_count(others: list[dict[str, Any]]) -> None:
    server = two_jobs()
    server.pods = [*others, *server.pods]
    made = bed(server)
    assert made.look() == ["sick"]
    made.look(later=3.0)
    assert made.evictor.is_empty("n1", gpu(1))


def test_a_pod_with_more_claims_than_are_read_counts_as_a_holder() -> None:
    server = two_jobs()
    server.pods.append(greedy_pod("greedy"))
    made = bed(server)
    assert sorted(made.look()) == ["greedy", "sick"]
    made.look(later=3.0)
    assert made.evictor.is_empty("n1", gpu(1))


def test_on_a_node_with_more_pods_with_claims_than_a_kubelet_runs_nothing_is_idle() -> None:
    server = Server([pod(f"p{number}", f"c{number}") for number in range(PODS_LIMIT + 1)], [])
    made = bed(server)
    made.look()
    assert not made.evictor.is_empty("n1", gpu(1))
    reader = HolderReader(server)  # type: ignore[arg-type]
    reader.use(API)
    with pytest.raises(TooManyPods):
        asyncio.run(reader.holders("n1", set()))


def test_a_holder_on_a_later_page_is_found() -> None:
    server = two_jobs()
    server.pods.reverse()
    server.page_size = 1
    assert bed(server).look() == ["sick"]


@pytest.mark.parametrize("unreadable", [True, False])
def test_a_list_that_cannot_be_read_completely_is_not_empty(unreadable: bool) -> None:
    server = Server([pod("plain"), pod("other")], [], page_size=1)
    server.gone = not unreadable
    server.unreadable = [UndecodableObject("team/odd", b"{}", "")] if unreadable else []
    made = bed(server)
    made.look()
    assert not made.evictor.is_empty("n1", gpu(1))

"""Pods on a faulty node and their owners: who is told, what, and how often."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Asked, FakeApi, Reply
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Node, ObjectReference
from muster_tainter.events.affected_pods import (
    FRESH_S,
    Concern,
    WorkPod,
    controller_of,
    event_name,
    find_affected_pods,
    find_concerns,
    format_message,
    pods_run,
)
from muster_tainter.events.pod_notifier import PodNotifier
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide
from muster_tainter.faults.record.node_record import Fault, OurTaint
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.settings import ACCELERATORS, load

NOW = 1.8e9
POLICY = "rules: [{name: hardware, match: {class: [reboot, replace]}, action: taint}]\n"
FAULTY = OurTaint(key="muster.dev/faulty", value="true", effect="NoSchedule")
FAULT = Fault(check="dmesg", component="gpu/0000:3b:00.0", reason="Xid79", occurrence=1, message="fell off the bus")


def pod(name: str = "train-0", **changes: Any) -> WorkPod:
    spec = changes.pop("spec", {"containers": [container("nvidia.com/gpu")]})
    owners = changes.pop("owners", [])
    phase = changes.pop("phase", "Running")
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owners, **changes}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, WorkPod)


def container(*resources: str, quantity: str = "1", where: str = "limits") -> dict[str, Any]:
    return {"name": "c", "resources": {where: {"cpu": "1", **dict.fromkeys(resources, quantity)}}}


def owner(kind: str, name: str, group: str = "batch/v1", *, controller: bool = True) -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": controller}


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ({"containers": [container("nvidia.com/gpu")]}, True),
        ({"containers": [container(), container("nvidia.com/mig-1g.10gb", where="requests")]}, True),
        ({"containers": [container("graphcore.ai/ipu")]}, True),
        ({"containers": [container()], "initContainers": [container("amd.com/gpu")]}, True),
        ({"containers": [container()], "resourceClaims": [{"name": "gpu"}]}, True),
        ({"containers": [container("nvidia.com/gpu", quantity="0")]}, False),
        ({"containers": [container("example.com/nic")]}, False),
        ({"containers": [container()]}, False),
        ({}, False),
    ],
)
def test_pods_that_hold_accelerators_are_told(spec: dict[str, Any], holds: bool) -> None:
    assert bool(find_affected_pods([pod(spec=spec)], ACCELERATORS)) == holds


def test_pods_of_ipu_jobs_hold_ipus_that_no_resource_names() -> None:
    job = owner("IPUJob", "bert", "graphcore.ai/v1alpha1")
    assert find_affected_pods([pod(spec={"containers": [container()]}, owners=[job])], ACCELERATORS)


def test_pods_that_have_ended_or_are_leaving_are_not_told() -> None:
    pods = [pod(phase="Succeeded"), pod(phase="Failed"), pod(deletionTimestamp="2026-01-01T00:00:00Z")]
    assert find_affected_pods(pods, ACCELERATORS) == []


def test_the_node_of_a_static_pod_is_not_its_owner() -> None:
    assert controller_of(pod(owners=[owner("Node", "n7", "v1")]).metadata) is None
    assert controller_of(pod(owners=[owner("Job", "j", controller=False)]).metadata) is None
    found = controller_of(pod(owners=[owner("Other", "o", controller=False), owner("Job", "j")]).metadata)
    assert found is not None
    assert found.name == "j"


def concern(**changes: Any) -> Concern:
    fault = changes.pop("fault", {})
    values: dict[str, Any] = {"rule": "hardware", "taint": FAULTY} | changes
    return Concern(msgspec.structs.replace(FAULT, since="2026-01-01T00:00:00Z", **fault), **values)


def test_the_message_names_node_taint_rule_fault_and_what_comes_next() -> None:
    def said(**changes: Any) -> str:
        return format_message("n7", [concern(**changes)], "WHO")

    tainted = said()
    key = "dmesg gpu/0000:3b:00.0 Xid79: fell off the bus"
    for fact in ("n7", "muster.dev/faulty=true:NoSchedule", "hardware", key, "WHO"):
        assert fact in tainted
    withheld = said(withheld="budget: 3 of 3")
    assert "budget: 3 of 3" in withheld
    assert FAULTY.key not in withheld, "it carries no taint"
    evicting, preferring = (OurTaint(key="k", value="", effect=effect) for effect in ("NoExecute", "PreferNoSchedule"))
    each = [tainted, withheld, said(drain=True), said(taint=evicting), said(taint=preferring)]
    assert len({text.rpartition("; ")[2] for text in each}) == 5, "each has another outcome for the pods there"


def test_many_faults_are_one_message_that_stays_short() -> None:
    many = [concern(fault={"reason": f"Xid{n}", "message": "m" * 2000}) for n in range(20)]
    text = format_message("n" * 253, many, pods_run([f"{n}" + "p" * 200 for n in range(40)]))
    assert len(text.encode()) <= 1000
    text = format_message("n7", [concern(fault={"reason": f"Xid{n}"}) for n in range(6)], pods_run(["a", "b"]))
    assert [n for n in range(6) if f"dmesg gpu/0000:3b:00.0 Xid{n}" in text] == [0, 1, 2, 3]
    assert "2 more" in text
    assert "a, b" in text


def test_the_same_news_has_the_same_name_and_other_news_another() -> None:
    about = ObjectReference(kind="Pod", name="p" * 253, uid="u1", namespace="team")
    name = event_name(about, "n7", concern())
    assert len(name) <= 253
    assert name == event_name(about, "n7", concern(fault={"occurrence": 9, "raised": "2026-01-01T01:00:00Z"}))
    others = [
        event_name(about, "n8", concern()),
        event_name(about, "n7", concern(withheld="budget")),
        event_name(about, "n7", concern(fault={"reason": "Xid48"})),
        event_name(msgspec.structs.replace(about, uid="u2"), "n7", concern()),
    ]
    assert len({name, *others}) == 5


def decided(
    make: Any, policy: str = POLICY, withhold: str = "", now: float = NOW, node: Node | None = None
) -> Decision:
    around = DecisionContext(withhold=withhold)
    return decide(node or make.node(), make.health(make.finding()), parse_policy(policy), now, None, around)


def test_faults_that_nothing_is_done_about_concern_nobody(make: Any) -> None:
    for policy in ("rules: [{name: q, action: quarantine}]", "rules: [{name: e, action: event}]"):
        assert find_concerns(decided(make, policy), parse_policy(policy), NOW) == []
    waiting = POLICY.replace("action", "for: 30s, action")
    decision = decided(make, waiting)
    assert find_concerns(decision, parse_policy(waiting), NOW + 29) == []
    assert len(find_concerns(decision, parse_policy(waiting), NOW + 30)) == 1


class Bench:
    """A PodNotifier, the API server that it asks, and the node as it stands."""

    def __init__(self, api: FakeApi, client: KubeClient, make: Any) -> None:
        self.api = api
        self.make = make
        self.client = client
        self.now = NOW
        self.leads = True
        self.nodes = {"n1": make.node()}
        self.pods: list[WorkPod] = [pod()]
        self.events: list[dict[str, Any]] = []
        self.metrics = TainterMetrics()
        self.idle = asyncio.Event()
        self.idle.set()
        self.fleet = FakeFleet(parse_policy(POLICY), self.nodes, taints_idle=self.idle)
        self.lists = 0
        self.jobs: list[tuple[str, list[str]]] = []  # what is told to whoever looks for incidents
        api.on("GET", "/api/v1/pods", self.listed)
        api.on("POST", "/api/v1/namespaces/team/events", self.take)
        self.notifier = self.another()

    @property
    def node(self) -> Node:
        return self.nodes["n1"]

    @node.setter
    def node(self, node: Node) -> None:
        self.nodes["n1"] = node

    def another(self) -> PodNotifier:
        replica = Replica(may_write=lambda: self.leads, now=lambda: self.now)
        return PodNotifier(
            self.client,
            self.fleet,
            replica,
            self.metrics,
            accelerators=ACCELERATORS,
            on_jobs=lambda node, jobs: self.jobs.append((node, jobs)),
        )

    def listed(self, asked: Asked) -> Reply:
        assert asked.query == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}
        self.lists += 1
        items = [msgspec.to_builtins(each) for each in self.pods]
        return Reply(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})

    def take(self, asked: Asked) -> Reply:
        event = json.loads(asked.body)
        if event["metadata"]["name"] in {each["metadata"]["name"] for each in self.events}:
            return Reply(409, {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "there"})
        self.events.append(event)
        return Reply(201, event)

    def decide(self, *reasons: str, withhold: str = "") -> Decision:
        """Decided and written: what stands on the node."""
        findings = [self.make.finding(reason) for reason in reasons]
        health, policy = self.make.health(*findings), parse_policy(POLICY)
        made = decide(self.node, health, policy, self.now, None, DecisionContext(withhold=withhold))
        self.node = made.applied(self.node)
        self.notifier.note("n1", made)
        return made

    @property
    def told(self) -> list[str]:
        return [f"{e['involvedObject']['kind']}/{e['involvedObject']['name']}" for e in self.events]

    async def settle(self) -> None:
        """Until nothing waits and nothing is under way."""
        task = asyncio.create_task(self.notifier.run())
        try:
            for _ in range(60_000):
                if not len(self.notifier):
                    return
                await asyncio.sleep(0.001)
            raise AssertionError("it tells for ever")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench(make: Any) -> AsyncIterator[Bench]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(server=f"http://127.0.0.1:{api.port}", namespace="x", origin="test")
    async with KubeClient(config, user_agent="test", timeout_s=30.0) as client:
        yield Bench(api, client, make)
    await api.stop()


async def test_pods_and_owners_get_an_event_each_that_names_fault_and_node(bench: Bench) -> None:
    job = [owner("Job", "train")]
    bench.pods = [
        pod("train-0", owners=job),
        pod("train-1", owners=job),
        pod("web", spec={"containers": [container()]}),
    ]
    bench.api.on("GET", "/apis/batch/v1/namespaces/team/jobs/train", Reply(200, {"metadata": {"name": "train"}}))
    bench.decide("Xid79")
    await bench.settle()
    assert bench.told == ["Pod/train-0", "Pod/train-1", "Job/train"]
    assert bench.jobs == [("n1", ["Job team/train"])]
    event = bench.events[0]
    assert event["involvedObject"] == {
        "kind": "Pod", "namespace": "team", "name": "train-0", "uid": "uid-train-0", "apiVersion": "v1",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["source"]) == (
        "Warning",
        "NodeFaulty",
        {"component": "muster-tainter"},
    )
    for fact in ("n1", "muster.dev/faulty=true:NoSchedule", "hardware", "dmesg gpu/"):
        assert fact in event["message"]
    assert "train-0, train-1" in bench.events[2]["message"]
    assert bench.events[2]["involvedObject"]["apiVersion"] == "batch/v1"
    assert len(bench.api.asked_for("GET", "/apis/batch/v1/namespaces/team/jobs/train")) == 1


async def test_the_owner_of_a_replica_set_or_a_job_is_told_too(bench: Bench) -> None:
    bench.pods = [
        pod("a", owners=[owner("ReplicaSet", "web-1", "apps/v1")]), pod("b", owners=[owner("Job", "step-0")]),
        pod("c", owners=[owner("PyTorchJob", "py", "kubeflow.org/v1")]),
        pod("d", owners=[owner("Job", "gone")]), pod("e", owners=[owner("Job", "secret")]),
    ]  # fmt: skip
    deployment, jobset = owner("Deployment", "web", "apps/v1"), owner("JobSet", "set", "jobset.x-k8s.io/v1alpha2")
    team = "namespaces/team"
    for path, owners in (("apps/v1", deployment), ("batch/v1", jobset)):
        plural = "replicasets/web-1" if path == "apps/v1" else "jobs/step-0"
        found = Reply(200, {"metadata": {"name": "x", "ownerReferences": [owners]}})
        bench.api.on("GET", f"/apis/{path}/{team}/{plural}", found)
    bench.api.on("GET", f"/apis/batch/v1/{team}/jobs/secret", Reply(403, {"reason": "Forbidden", "code": 403}))
    bench.decide("Xid79")
    await bench.settle()
    owners_told = [about for about in bench.told if not about.startswith("Pod/")]
    assert owners_told == [
        "ReplicaSet/web-1", "Deployment/web", "Job/step-0", "JobSet/set", "PyTorchJob/py", "Job/gone", "Job/secret",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("../../../../../api/v1/pods", "batch/v1"),
        ("j?watch=1", "batch/v1"),
        ("j\r\nX", "batch/v1"),
        ("a/b", "batch/v1"),
        ("j", "batch/.."),
        ("j", "batch/v1?watch=1"),
    ],
)
async def test_what_a_pod_says_of_its_owner_never_becomes_another_path(bench: Bench, name: str, group: str) -> None:
    """The API server takes any text for an owner's name: who makes a pod could have the tainter list the cluster."""
    bench.pods = [pod("a", owners=[owner("Job", name, group)])]
    bench.decide("Xid79")
    await bench.settle()
    assert {asked.path for asked in bench.api.asked} == {"/api/v1/pods", "/api/v1/namespaces/team/events"}
    assert bench.told[0] == "Pod/a"


async def test_many_faults_at_once_cost_one_list_and_one_event_a_pod(bench: Bench) -> None:
    bench.idle.clear()
    bench.decide("Xid79", "Xid48")
    bench.decide("Xid79", "Xid48", "Xid95")
    bench.idle.set()
    await bench.settle()
    assert bench.lists == 1
    assert bench.told == ["Pod/train-0"]
    for reason in ("Xid79", "Xid48", "Xid95"):
        assert reason in bench.events[0]["message"]


async def test_nothing_is_told_twice_and_nothing_is_listed_for_it(bench: Bench) -> None:
    bench.decide("Xid79")
    await bench.settle()
    bench.now += 5
    bench.decide("Xid79")
    await bench.settle()
    assert bench.lists == 1
    bench.decide("Xid79", "Xid48")
    await bench.settle()
    assert bench.lists == 2
    assert len(bench.events) == 2


async def test_a_new_leader_repeats_nothing_and_tells_what_the_last_one_left(bench: Bench) -> None:
    made = bench.decide("Xid79")
    await bench.settle()
    bench.pods.append(pod("train-1"))  # as if the leader had died before it came to this one
    bench.notifier = bench.another()
    bench.notifier.note("n1", bench.decide("Xid79"))
    await bench.settle()
    assert bench.told == ["Pod/train-0", "Pod/train-1"]
    bench.now += FRESH_S + 1
    lists = bench.lists
    bench.notifier = bench.another()
    bench.notifier.note("n1", made)
    bench.decide("Xid79")
    await bench.settle()
    assert bench.lists > lists  # ``made`` sets the taint: that is news however old the fault is
    bench.notifier = bench.another()
    lists = bench.lists
    bench.decide("Xid79")
    await bench.settle()
    assert bench.lists == lists


async def test_a_fault_that_is_withheld_is_told_and_again_when_its_taint_comes(bench: Bench) -> None:
    bench.decide("Xid79", withhold="budget: 3 of 3")
    await bench.settle()
    bench.now += 2 * FRESH_S
    bench.decide("Xid79", withhold="budget: 3 of 3")
    await bench.settle()
    assert bench.lists == 1
    bench.decide("Xid79")
    await bench.settle()
    assert bench.told == ["Pod/train-0", "Pod/train-0"]
    assert "budget: 3 of 3" in bench.events[0]["message"]
    assert "muster.dev/faulty" not in bench.events[0]["message"]
    assert "muster.dev/faulty" in bench.events[1]["message"]


async def test_a_taint_that_came_before_the_word_of_its_withholding_is_told_alone(bench: Bench) -> None:
    bench.decide("Xid79", withhold="budget: 3 of 3")
    bench.decide("Xid79")
    await bench.settle()
    assert len(bench.events) == 1
    assert "muster.dev/faulty" in bench.events[0]["message"]
    assert bench.events[0]["message"].count("Xid79") == 1


async def test_a_taint_that_is_put_back_is_no_news(bench: Bench) -> None:
    bench.decide("Xid79")
    await bench.settle()
    bench.now += 2 * FRESH_S
    dropped = msgspec.structs.replace(bench.node.spec, taints=())
    bench.node = msgspec.structs.replace(bench.node, spec=dropped)
    bench.notifier = bench.another()
    made = bench.decide("Xid79")
    await bench.settle()
    assert made.taint_changes
    assert bench.lists == 1


async def test_what_is_over_before_its_turn_is_not_told(bench: Bench) -> None:
    bench.idle.clear()
    made = bench.decide("Xid79")
    bench.node = bench.make.node()
    bench.idle.set()
    await bench.settle()
    assert made.memory.open
    assert (bench.lists, bench.events) == (0, [])


async def test_a_replica_that_lost_the_lease_tells_nothing(bench: Bench) -> None:
    bench.decide("Xid79")
    bench.leads = False
    await bench.settle()
    assert (bench.lists, bench.events) == (0, [])


@pytest.mark.parametrize(
    "refusal", [Reply(403, {"reason": "Forbidden", "code": 403}), Reply(404, {"reason": "NotFound", "code": 404})]
)
async def test_a_namespace_that_is_going_keeps_no_other_pod_waiting(bench: Bench, refusal: Reply) -> None:
    bench.pods = [pod("a", namespace="leaving"), pod("b")]
    bench.api.on("POST", "/api/v1/namespaces/leaving/events", refusal)
    bench.decide("Xid79")
    await bench.settle()
    assert bench.told == ["Pod/b"]


async def test_what_the_server_could_not_take_is_tried_again(bench: Bench) -> None:
    busy = Reply(500, {"reason": "InternalError", "code": 500})
    bench.pods = [pod("a"), pod("b")]
    bench.api.on("POST", "/api/v1/namespaces/team/events", bench.take, busy, bench.take)
    bench.decide("Xid79")
    await bench.settle()
    assert bench.told == ["Pod/a", "Pod/b"]


async def test_without_the_right_to_list_pods_nobody_asks_again(bench: Bench) -> None:
    bench.api.on("GET", "/api/v1/pods", Reply(403, {"reason": "Forbidden", "code": 403}))
    bench.decide("Xid79")
    await bench.settle()
    assert len(bench.api.asked_for("GET", "/api/v1/pods")) == 1


async def test_a_node_full_of_pods_is_told_up_to_a_bound(bench: Bench) -> None:
    bench.pods = [pod(f"p{n:03}", owners=[owner("X", f"o{n}", "x.io/v1")]) for n in range(200)]
    bench.decide("Xid79")
    await bench.settle()
    assert len([about for about in bench.told if about.startswith("Pod/")]) == 64
    assert len(bench.told) <= 64 + 65


def test_accelerators_are_a_list_with_commas_in_a_variable() -> None:
    environ = {"MUSTER_TAINTER_ACCELERATORS": "example.com/fpga, nvidia.com/"}
    assert load(None, {}, environ).accelerators == ("example.com/fpga", "nvidia.com/")
    assert load(None, {}, {}).accelerators == ACCELERATORS

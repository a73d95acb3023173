"""Random lives of pods with IPUs: partitions come late, are refused or vanish, pods are made again under their name,
end, are lost with their node, or are meddled with, and the operator dies between any two writes.

No pod goes on before it has its partition and its ConfigMap, and nothing of anybody else's is touched. Whenever the
operator has looked at all of them, a pod has a partition exactly while it can use it; in the end none is left.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster_kube.api.objects import Metadata
from muster_operator.job import names, pod_outcome
from muster_operator.job.ipu_pod import IpuPod, as_job, config_map_name, config_map_of, is_gated
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    FreePartition,
    NodeCapacity,
    NodeProblem,
    OwnedObject,
    PatchObject,
    Snapshot,
    TakePartitions,
)
from muster_operator.plan.ipu_pod import plan_ipu_pod

NS = "team"
NODES = {"n1": {"ipunode": "rack1"}, "n2": {"ipunode": "rack2"}}
TAINTS = ("muster.dev/faulty",)
ROUNDS = 12
ROOM = 2
which = st.sampled_from(["a", "b", "c"])


def make_pod(name: str, number: int, *, gated: bool, selector: str = "", queued: bool = False) -> IpuPod:
    """queued: it has the gate of another controller."""
    gates = [{"name": "others"}] * queued + [{"name": names.IPUS}] * gated
    volume = {"name": "muster-ipus", "configMap": {"name": config_map_name(4, f"{number:016x}")}}
    spec = {"volumes": [volume], "schedulingGates": gates, "nodeSelector": {"ipunode": selector} if selector else {}}
    metadata = {"name": name, "namespace": NS, "uid": f"uid-{number}", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, IpuPod)


@dataclass
class PodCluster:
    """room: partitions that V-IPU could still make. maps: by name, the owner's uid and the object."""

    now: float = 1_700_000_000.0
    room: int = ROOM
    healthy: int = 1
    pods: dict[str, IpuPod] = field(default_factory=dict)
    tracker: dict[str, PartitionEntry] = field(default_factory=dict)
    maps: dict[str, tuple[str, OwnedObject]] = field(default_factory=dict)
    problems: dict[str, NodeProblem] = field(default_factory=dict)
    unsuitable: set[str] = field(default_factory=set)  # uids of pods that ask for no other partition yet
    numbers: int = 0

    def turn(self, name: str, actions: int = 99) -> None:
        """As the operator's: at most so many actions, then it dies."""
        refusals: dict[str, PartitionRefusal] = {}
        foreign: dict[tuple[str, str], str] = {}
        for _ in range(ROUNDS):
            self._collect(name)
            pod = self.pods.get(name)
            job = None if pod is None else as_job(pod)
            if pod is None or job is None:
                return
            entries = {key: entry for key, entry in self.tracker.items() if entry.job == pod.metadata.uid}
            snapshot = Snapshot(
                now=self.now,
                pods={name: pod},
                objects={("ConfigMap", key): each for key, (uid, each) in self.maps.items() if uid == pod.metadata.uid},
                foreign=foreign,
                entries=entries,
                refusals=refusals,
                node_capacity=NodeCapacity(nodes=2, healthy=self.healthy),
                bad_nodes=self.problems,
            )
            plan = plan_ipu_pod(pod, job, snapshot, NODES.get(pod.spec.node_name), TAINTS)
            news = False
            for action in plan.actions:
                if actions == 0:
                    return
                actions -= 1
                if (done := self._act(pod, action, refusals, foreign)) is None:
                    break
                news |= done
            if not news:
                return
        raise AssertionError(f"pod {name} does not come to rest while the world stands still: {plan}")

    def _collect(self, name: str) -> None:
        """As act/orphans.py: what belongs to a pod of that name that is gone."""
        pod = self.pods.get(name)
        for key, entry in list(self.tracker.items()):
            if entry.name == f"pod/{name}" and (pod is None or pod.metadata.uid != entry.job):
                self.tracker[key] = msgspec.structs.replace(entry, state="deleting")

    def _act(
        self,
        pod: IpuPod,
        action: Action,
        refusals: dict[str, PartitionRefusal],
        foreign: dict[tuple[str, str], str],
    ) -> bool | None:
        """Whether there is news; None if it was refused."""
        partition = names.partition(NS, f"pod/{pod.metadata.name}", 0)
        match action:
            case TakePartitions():
                if partition in refusals or pod.metadata.uid in self.unsuitable:
                    return None
                if partition in self.tracker or not self.room:
                    refusals[partition] = PartitionRefusal(why="NoRoom", message="no room")
                    return True
                assert (action.size, action.gcds) == (4, 1)
                assert not pod.metadata.deletion_timestamp
                assert not pod_outcome.has_ended(pod)
                assert pod.spec.node_name or not is_queued(pod), "it cannot use it yet"
                self.room -= 1
                job = f"pod/{pod.metadata.name}"
                self.tracker[partition] = PartitionEntry(
                    job=pod.metadata.uid, namespace=NS, name=job, size=4, controller="h:8090", selector="ipunode=rack1"
                )
                return True
            case FreePartition():
                assert action.name == partition
                entry = self.tracker[partition]
                assert entry.job == pod.metadata.uid, "the partition of another pod"
                self.tracker[partition] = msgspec.structs.replace(entry, state="deleting")
                if action.unsuitable:
                    self.unsuitable.add(pod.metadata.uid)
                return True
            case CreateObject(kind="ConfigMap"):
                return self._create(pod, action, foreign)
            case PatchObject(kind="Pod"):
                assert self.tracker[partition].state == "active"
                assert self.maps[config_map_of(pod)][0] == pod.metadata.uid
                assert action.body["metadata"]["resourceVersion"] == pod.metadata.resource_version
                self.pods[pod.metadata.name] = patched(pod, dict(action.body))
                return True
        return False

    def _create(self, pod: IpuPod, action: CreateObject, foreign: dict[tuple[str, str], str]) -> bool | None:
        key = (action.kind, action.name)
        if action.name in self.maps:  # another's: it is left alone, and asked for again later
            if key in foreign:
                return False
            foreign[key] = self.maps[action.name][0]
            return None
        (owner,) = action.body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", pod.metadata.uid)
        metadata = msgspec.convert(action.body["metadata"], Metadata)
        self.maps[action.name] = owner["uid"], OwnedObject(metadata=metadata)
        return True

    def edit(self, name: str, **status: Any) -> None:
        pod = self.pods[name]
        self.pods[name] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))


def is_queued(pod: IpuPod) -> bool:
    return any(gate.name == "others" for gate in pod.spec.scheduling_gates)


def patched(pod: IpuPod, body: dict[str, Any]) -> IpuPod:
    """A merge patch of what the operator changes."""
    gates = body.get("spec", {}).get("schedulingGates", [{"name": each.name} for each in pod.spec.scheduling_gates])
    assert [each for each in gates if each["name"] == "others"] == [
        {"name": each.name} for each in pod.spec.scheduling_gates if each.name == "others"
    ], "a gate that is not ours"
    spec = msgspec.to_builtins(pod.spec) | {"schedulingGates": gates}
    spec["nodeSelector"] = pod.spec.node_selector | body.get("spec", {}).get("nodeSelector", {})
    found = msgspec.to_builtins(pod) | {"spec": spec}
    found["metadata"]["annotations"] = pod.metadata.annotations | body["metadata"]["annotations"]
    return msgspec.convert(found, IpuPod)


class PodLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = PodCluster()

    @rule(
        name=which,
        gated=st.booleans(),
        selector=st.sampled_from(["", "", "rack1", "rack2"]),
        queued=st.booleans(),
    )
    def a_pod_is_made(self, name: str, gated: bool, selector: str, queued: bool) -> None:
        if name not in self.cluster.pods:
            self.cluster.numbers += 1
            number = self.cluster.numbers
            self.cluster.pods[name] = make_pod(name, number, gated=gated, selector=selector, queued=queued)

    @rule(name=which)
    def another_controller_opens_its_gate(self, name: str) -> None:
        if (pod := self.cluster.pods.get(name)) is not None:
            gates = tuple(gate for gate in pod.spec.scheduling_gates if gate.name != "others")
            spec = msgspec.structs.replace(pod.spec, scheduling_gates=gates)
            self.cluster.pods[name] = msgspec.structs.replace(pod, spec=spec)

    @rule(name=which, actions=st.integers(0, 4))
    def the_operator_dies_while_it_looks(self, name: str, actions: int) -> None:
        self.cluster.turn(name, actions)

    @rule(name=which)
    def look(self, name: str) -> None:
        self.cluster.turn(name)

    @rule(name=which, gated=st.booleans(), steps=st.integers(1, 5), end=st.sampled_from(["Running", "Succeeded"]))
    def all_goes_well(self, name: str, gated: bool, steps: int, end: str) -> None:
        if name not in self.cluster.pods:
            self.a_pod_is_made(name, gated, "", queued=False)
        self.another_controller_opens_its_gate(name)
        for _ in range(steps):
            self.cluster.turn(name)
            self.vipu_gets_on()
            self.the_scheduler_binds(name, "n1")
        self.a_pod_gets_on(name, end)

    @rule()
    def vipu_gets_on(self) -> None:
        for key, entry in list(self.cluster.tracker.items()):
            if entry.state == "deleting":
                del self.cluster.tracker[key]
                self.cluster.room += 1
            else:
                self.cluster.tracker[key] = msgspec.structs.replace(entry, state="active")

    @precondition(lambda self: self.cluster.tracker)
    @rule(number=st.integers(0, 3))
    def a_partition_vanishes(self, number: int) -> None:
        del self.cluster.tracker[sorted(self.cluster.tracker)[number % len(self.cluster.tracker)]]
        self.cluster.room += 1

    @rule(name=which, node=st.sampled_from(["n1", "n1", "n2"]))
    def the_scheduler_binds(self, name: str, node: str) -> None:
        pod = self.cluster.pods.get(name)
        labels = NODES[node]
        if pod is None or pod.spec.scheduling_gates or pod.spec.node_name:
            return
        if all(labels.get(key) == value for key, value in pod.spec.node_selector.items()):
            spec = msgspec.structs.replace(pod.spec, node_name=node)
            self.cluster.pods[name] = msgspec.structs.replace(pod, spec=spec)

    @rule(name=which, phase=st.sampled_from(["Running", "Running", "Succeeded", "Failed"]))
    def a_pod_gets_on(self, name: str, phase: str) -> None:
        pod = self.cluster.pods.get(name)
        if pod is None or not pod.spec.node_name or pod_outcome.has_ended(pod):
            return
        if config_map_of(pod) in self.cluster.maps:  # its containers need the ConfigMap
            self.cluster.edit(name, phase=phase)

    @rule(name=which)
    def a_pod_is_gone(self, name: str) -> None:
        pod = self.cluster.pods.pop(name, None)
        if pod is not None:
            owned = [key for key, (uid, _) in self.cluster.maps.items() if uid == pod.metadata.uid]
            for key in owned:  # as Kubernetes' garbage collector does
                del self.cluster.maps[key]

    @rule(name=which)
    def a_pod_is_told_to_end(self, name: str) -> None:
        if (pod := self.cluster.pods.get(name)) is not None and pod.spec.node_name:
            metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
            self.cluster.pods[name] = msgspec.structs.replace(pod, metadata=metadata)

    @rule(kind=st.sampled_from(["", "Gone", "NotReady", "Faulty"]), seconds=st.sampled_from([1, 40]))
    def the_node_fails_or_recovers(self, kind: Any, seconds: int) -> None:
        self.cluster.problems = {"n1": NodeProblem(kind, "it is bad")} if kind else {}
        self.cluster.now += seconds

    @rule(name=which)
    def its_user_opens_the_gate_and_takes_the_annotation(self, name: str) -> None:
        if (pod := self.cluster.pods.get(name)) is not None:
            metadata = msgspec.structs.replace(pod.metadata, annotations={}, labels={})
            spec = msgspec.structs.replace(pod.spec, scheduling_gates=())
            self.cluster.pods[name] = msgspec.structs.replace(pod, metadata=metadata, spec=spec)

    @rule(name=which, other=st.booleans())
    def its_config_map_is_deleted_or_its_name_taken(self, name: str, other: bool) -> None:
        if (pod := self.cluster.pods.get(name)) is None:
            return
        self.cluster.maps.pop(config_map_of(pod), None)
        if other:
            self.cluster.maps[config_map_of(pod)] = "others", OwnedObject(metadata=Metadata(name=config_map_of(pod)))

    @rule()
    def unsuitable_partitions_are_forgotten(self) -> None:
        self.cluster.unsuitable.clear()

    @rule(healthy=st.integers(0, 1))
    def nodes_are_tainted(self, healthy: int) -> None:
        self.cluster.healthy = healthy

    @invariant()
    def a_gate_is_open_only_for_who_has_its_partition(self) -> None:
        for pod in self.cluster.pods.values():
            if pod.metadata.annotations.get(names.PARTITION):
                assert not is_gated(pod)

    def teardown(self) -> None:
        self.at_rest_a_pod_has_a_partition_exactly_while_it_can_use_it()
        for name in list(self.cluster.pods):
            self.a_pod_is_gone(name)
        self.at_rest_a_pod_has_a_partition_exactly_while_it_can_use_it()
        self.vipu_gets_on()
        assert (self.cluster.tracker, self.cluster.room) == ({}, ROOM)

    @rule()
    def at_rest_a_pod_has_a_partition_exactly_while_it_can_use_it(self) -> None:
        cluster = self.cluster
        for name in ("a", "b", "c"):
            cluster.turn(name)
        held = {entry.job: entry for entry in cluster.tracker.values() if entry.state != "deleting"}
        uids = {pod.metadata.uid: pod for pod in cluster.pods.values()}
        assert held.keys() <= uids.keys(), "a partition of a pod that is gone"
        for uid, pod in uids.items():
            bad = cluster.problems.get(pod.spec.node_name)
            if pod_outcome.has_ended(pod) or (bad is not None and bad.kind == "Gone"):
                assert uid not in held
            elif is_queued(pod):
                assert uid not in held, "it withholds a partition that it cannot use yet"
            elif uid not in held and is_gated(pod) and not pod.metadata.deletion_timestamp:
                waits = names.partition(NS, f"pod/{pod.metadata.name}", 0) in cluster.tracker
                waits = waits or uid in cluster.unsuitable
                assert waits or not cluster.room or not cluster.healthy, "it waits for nothing"
            elif uid in held and is_gated(pod) and pod.spec.node_selector.get("ipunode") == "rack2":
                assert held[uid].state == "creating", "it withholds a partition that it cannot reach"


TestPodLives = PodLives.TestCase
TestPodLives.settings = settings(max_examples=60, stateful_step_count=30)

"""Plans the next actions for a pod that has IPUs by its annotation. Pure and idempotent, as for jobs.

The pod belongs to somebody else: the operator neither creates nor deletes it. A partition is released when nothing of
the pod can use it: the pod has ended, is lost with its node, or cannot reach it. Of a pod that is gone, the collector
of orphans (:mod:`muster_operator.act.orphans`) releases it.
"""

from collections.abc import Mapping

from muster_operator.job import lost_pods, names, pod_outcome, timers
from muster_operator.job.ipu_pod import IpuPod, config_map_of, is_gated
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    FreePartition,
    JobPlan,
    PatchObject,
    RecordEvent,
    Snapshot,
    TakePartitions,
)
from muster_operator.job.types import IPUJob, ipus_per_instance
from muster_operator.plan.waiting_reason import describe_no_node
from muster_operator.resources import placement
from muster_operator.resources.ipu_pods import config_map
from muster_operator.resources.ownership import CONTENT

WAITING = "WaitingForIPUs"  # reason of the Events of a pod that has no partition yet


def plan_ipu_pod(
    pod: IpuPod, job: IPUJob, snapshot: Snapshot, node_labels: Mapping[str, str] | None, our_taints: tuple[str, ...]
) -> JobPlan:
    """job: :func:`muster_operator.job.ipu_pod.as_job` of the pod. node_labels: of its node, None if it is not known."""
    name = names.partition(job.metadata.namespace, job.metadata.name, 0)
    entry = snapshot.entries.get(name)
    lost_at = lost_pods.force_delete_at(pod, snapshot)
    if pod_outcome.has_ended(pod) or (lost_at is not None and snapshot.now >= lost_at):
        return JobPlan(() if entry is None or entry.state == "deleting" else (FreePartition(name),))
    again_s = timers.next_s(snapshot.now, lost_at)
    if entry is None:
        return JobPlan() if pod.metadata.deletion_timestamp else _take(pod, job, snapshot, our_taints)
    if entry.state != "active":
        events = [RecordEvent("Warning", WAITING, f"{name}: {entry.message}")] if entry.message else []
        return JobPlan(tuple(events), again_s=again_s)
    faults = (RecordEvent("Warning", "HealthDegraded", text) for text in snapshot.bad_ipus.get(name, ()))
    if text := _conflict(pod, entry, node_labels):
        event = RecordEvent("Warning", "NodeSelectorConflict", text)
        if not _may_use(pod, snapshot):
            return JobPlan((FreePartition(name, unsuitable=True), event))
        return JobPlan((event, *faults), again_s=again_s)
    return JobPlan((*_hand_over(pod, entry, name, snapshot), *faults), again_s=again_s)


def _take(pod: IpuPod, job: IPUJob, snapshot: Snapshot, our_taints: tuple[str, ...]) -> JobPlan:
    if not pod.spec.node_name:
        if [gate.name for gate in pod.spec.scheduling_gates] != [names.IPUS]:
            # without our gate it has to find a node first, and with others it waits for something else meanwhile (a
            # queue's admission, for example): it would withhold the partition from others
            return JobPlan()
        if text := describe_no_node(snapshot.node_capacity, our_taints):
            return JobPlan((RecordEvent("Warning", "NoHealthyNode", text),), waits_for_room=True)
    take = TakePartitions((0,), attempt=0, size=ipus_per_instance(job.spec), gcds=1, together=True)
    refused = (RecordEvent("Warning", WAITING, each.message) for each in snapshot.refusals.values())
    return JobPlan((take, *refused), waits_for_room=True)


def _may_use(pod: IpuPod, snapshot: Snapshot) -> bool:
    """Whether its containers may have started on the partition; a node's labels can change afterwards."""
    given = names.PARTITION in pod.metadata.annotations or ("ConfigMap", config_map_of(pod)) in snapshot.objects
    return given and not pod.spec.scheduling_gates


def _conflict(pod: IpuPod, entry: PartitionEntry, node_labels: Mapping[str, str] | None) -> str:
    """Why the pod cannot reach its partition; empty if it can, or if the node is not known."""
    key, _, value = entry.selector.partition("=")
    if not key:
        return ""
    if not pod.spec.node_name:
        found = pod.spec.node_selector.get(key, value)
        return (
            "" if found == value else f"the pod has the nodeSelector {key}={found}; its partition needs {key}={value}"
        )
    if node_labels is None or node_labels.get(key) == value:
        return ""
    return f"node {pod.spec.node_name} does not have the label {key}={value}, which the pod's partition needs"


def _hand_over(pod: IpuPod, entry: PartitionEntry, name: str, snapshot: Snapshot) -> tuple[Action, ...]:
    """First the ConfigMap, then the pod may go on: what it waits for must be there."""
    body = config_map(pod, entry, name)
    kind, config, annotations = "ConfigMap", body["metadata"]["name"], body["metadata"]["annotations"]
    there = snapshot.objects.get((kind, config))
    if there is None:
        return (CreateObject(kind, config, body),)
    if there.metadata.annotations.get(CONTENT) != annotations[CONTENT]:
        return (PatchObject(kind, config, {"metadata": {"annotations": annotations}, "data": body["data"]}),)
    if pod.metadata.annotations.get(names.PARTITION) == name and not is_gated(pod):
        return ()
    return (PatchObject("Pod", pod.metadata.name, _open(pod, entry, name)),)


def _open(pod: IpuPod, entry: PartitionEntry, name: str) -> dict[str, object]:
    """The body of a merge patch. A kubelet looks again at once at a pod that changes, and so sees the ConfigMap."""
    meta = pod.metadata
    metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": {names.PARTITION: name}}
    if not is_gated(pod):
        return {"metadata": metadata}
    gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates if gate.name != names.IPUS]
    spec: dict[str, object] = {"schedulingGates": gates}
    if selector := placement.node_selector({}, [entry.selector]):
        spec["nodeSelector"] = selector
    return {"metadata": metadata, "spec": spec}

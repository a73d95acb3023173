"""Pods that are lost with their node: the node is gone, or it is not Ready and the cluster has begun to evict them.

No kubelet will report how such a pod ended, so it would hold up its job forever. After its grace period the operator
deletes it by force. The partition is reset or recreated before another attempt begins, so nothing keeps running on its
IPUs.
"""

from collections.abc import Iterable

from muster_kube.api import times
from muster_operator.job import pod_outcome
from muster_operator.job.snapshot import JobPod, Snapshot

LOST = "was lost with node"
FORCED_AFTER_S = 30.0  # after the end of its grace period, for a kubelet that is only slow


def is_lost(pod: JobPod, snapshot: Snapshot) -> bool:
    """The pod has not ended, and no kubelet will report its end."""
    bad = snapshot.bad_nodes.get(pod.spec.node_name)
    if bad is None or pod_outcome.has_ended(pod):
        return False
    return bad.kind == "Gone" or (bad.kind == "NotReady" and bool(pod.metadata.deletion_timestamp))


def describe_loss(pod: JobPod, snapshot: Snapshot) -> str:
    return pod_outcome.shorten(
        f"pod {pod.metadata.name} {LOST} {pod.spec.node_name}: {snapshot.bad_nodes[pod.spec.node_name].what}"
    )


def describe_end(pod: JobPod, snapshot: Snapshot) -> str:
    """Of a pod that has failed or is lost."""
    return describe_loss(pod, snapshot) if is_lost(pod, snapshot) else pod_outcome.describe_failure(pod)


def force_delete_at(pod: JobPod, snapshot: Snapshot) -> float | None:
    """When the pod may be deleted by force, in seconds since the epoch; None: never."""
    bad = snapshot.bad_nodes.get(pod.spec.node_name)
    if bad is None or bad.kind == "Faulty":
        return None
    if bad.kind == "Gone":
        return snapshot.now
    # a deletionTimestamp is the end of the grace period
    return times.seconds(pod.metadata.deletion_timestamp) + FORCED_AFTER_S if pod.metadata.deletion_timestamp else None


def force_delete_times(pods: Iterable[JobPod], snapshot: Snapshot) -> list[float | None]:
    return [force_delete_at(pod, snapshot) for pod in pods] if snapshot.bad_nodes else []

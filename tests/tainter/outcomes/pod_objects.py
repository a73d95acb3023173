"""Pods as the API server sends them, for tests of outcomes."""

from typing import Any

import msgspec

from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_kube.api.times import rfc3339_whole
from muster_tainter.outcomes.outcome import reduce_pod, reduce_restarted
from muster_tainter.outcomes.pods import OutcomePod, PodOutcome

NOW = 1_800_000_000.0
ALLOCATE = "Pod was rejected: Allocate failed due to "
# of the node of pytorch/ci-infra 1058
GPU_LOST = (
    ALLOCATE
    + "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = error getting "
    "list of preferred allocation devices: unable to get device link information: error getting NVLink for devices "
    "(0, 1): failed to get nvlink remote pci info: failed to get nvlink state: GPU is lost, which is unexpected"
)
# of a pod with spec.nodeName on a node whose devices are all in use
NONE_FREE = ALLOCATE + (
    "requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected"
)


def node_object(name: str = "n1", gpus: int = 8, annotations: dict[str, str] | None = None) -> Node:
    allocatable = {"cpu": "64", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return Node(metadata=Metadata(name=name, annotations=annotations or {}), status=NodeStatus(allocatable=allocatable))


_decode = msgspec.json.Decoder(OutcomePod).decode


def ended(reason: str, *, exit_code: int = 1, at: float = NOW) -> dict[str, Any]:
    """A container's status."""
    state = {"reason": reason, "exitCode": exit_code, "finishedAt": rfc3339_whole(at)}
    return {"name": "main", "state": {"terminated": state}, "restartCount": 0}


def waiting(reason: str) -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": "…"}}}


def restarted(reason: str, *, exit_code: int = 1, at: float = NOW, now: dict[str, Any] | None = None) -> dict[str, Any]:
    """A container's status after it was started again. now: its state; running by default."""
    last = {"reason": reason, "exitCode": exit_code, "finishedAt": rfc3339_whole(at)}
    state = now or {"running": {"startedAt": rfc3339_whole(at)}}
    return {"name": "main", "state": state, "lastState": {"terminated": last}, "restartCount": 1}


def pod_object(
    name: str = "train-0",
    *,
    phase: str = "Succeeded",
    namespace: str = "ml",
    node: str = "n1",
    owner: tuple[str, str] | None = ("Job", "train"),
    labels: dict[str, str] | None = None,
    reason: str = "",
    message: str = "",
    containers: list[dict[str, Any]] | None = None,
    init_containers: list[dict[str, Any]] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    gpus: int = 0,
    created: float = NOW - 100,
    bound: float = NOW - 90,
    deleted: bool = False,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-of-{namespace}-{name}",
        "resourceVersion": "7",
        "creationTimestamp": rfc3339_whole(created),
        "labels": labels or {},
    }
    if owner is not None:
        kind, owner_name = owner
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": kind, "name": owner_name, "uid": f"uid-of-{owner_name}", "controller": True}
        ]
    if deleted:
        metadata["deletionTimestamp"] = rfc3339_whole(NOW)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339_whole(bound)}
    limits = {"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "64Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {
            "phase": phase,
            "reason": reason,
            "message": message,
            "conditions": [scheduled, *(conditions or [])],
            "containerStatuses": containers or [],
            "initContainerStatuses": init_containers or [],
        },
    }


def decoded(value: dict[str, Any]) -> OutcomePod:
    return _decode(msgspec.json.encode(value))


def reduced(value: dict[str, Any]) -> OutcomePod:
    return reduce_pod(decoded(value))


def running(value: dict[str, Any]) -> PodOutcome | None:
    """What a pod that runs says."""
    return reduce_restarted(decoded(value)).outcome


def outcome(name: str = "train-0", **fields: Any) -> PodOutcome:
    found = reduced(pod_object(name, **fields)).outcome
    assert found is not None
    return found

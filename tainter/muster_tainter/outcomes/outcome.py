"""What a pod's end says: nothing, that it came through, or how it failed. Pure.

The reasons are Kubernetes' own (:mod:`muster_tainter.outcomes.kinds`). No text of the application counts: neither its
log nor its termination message is read.
"""

import sys

from muster_kube.api.objects import Metadata
from muster_kube.api.times import seconds
from muster_tainter.outcomes.kinds import (
    ADMINISTRATIVE,
    ADMISSION,
    APPLICATION_EXIT,
    DEVICE_ALLOCATION,
    KINDS,
    KUBELET_ADMISSION,
    POD_START,
    UNEXPECTED,
    Kind,
    Place,
)
from muster_tainter.outcomes.owners import owner_of
from muster_tainter.outcomes.pods import Devices, EndedState, OutcomePod, OutcomeStatus, PodCondition, PodOutcome

REASON_LIMIT = 64  # characters of a reason that is not in the table

# Errors of the device manager by which a node fails that offers devices (pkg/kubelet/cm/devicemanager/manager.go and
# endpoint.go). Not among them, because a pod can cause them on a good node:
# - "requested number of devices unavailable": with spec.nodeName on a node whose devices are all in use, as the kubelet
#   allocates devices before it looks for room (pkg/kubelet/kubelet.go, the order of the admit handlers); or right after
#   a pod was deleted by force, whose containers still run
# - "rpc error" of Allocate: plug-ins reject requests for their size (NVIDIA, sharing), and pods that did not come
#   through the plug-in's own scheduler (HAMi, Volcano). GetPreferredAllocation knows of devices, and of no pod
# A container runtime, the CPU manager and the memory manager reject pods with the same reason.
_ALLOCATE = "Allocate failed due to "
_DEVICE_MANAGER = (
    "device plugin GetPreferredAllocation rpc failed",
    "no healthy devices present",
    "previously allocated devices are no longer healthy",
    "cannot allocate unregistered device",
    "can't allocate unregistered device",
    "unknown Device Plugin",
    "Unknown Device Plugin",
    "endpoint not found in cache",
)
# pkg/kubelet/lifecycle/predicate.go
_PLUGIN_RESOURCES = "Update plugin resources failed due to "

# k8s.io/api/core/v1: reasons of the condition DisruptionTarget, all set by control-plane components and the kubelet
_DISRUPTION = "DisruptionTarget"
_SCHEDULED = "PodScheduled"
# resources that no device plug-in allocates
_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "storage", "pods"})
_DEVICE_LIMIT = 8  # different resources of one pod that are remembered


def _by_reason(place: Place) -> tuple[dict[str, Kind], tuple[tuple[str, Kind], ...]]:
    exact: dict[str, Kind] = {}
    prefixes: list[tuple[str, Kind]] = []
    for kind in KINDS:
        for reason in kind.reasons:
            if reason.place is not place or reason.name == UNEXPECTED:
                continue
            if reason.name.endswith("*"):
                prefixes.append((reason.name[:-1], kind))
            else:
                exact[reason.name] = kind
    return exact, tuple(prefixes)


_POD_EXACT, _POD_PREFIXES = _by_reason(Place.POD)
_ENDED, _ = _by_reason(Place.ENDED)
_WAITING, _ = _by_reason(Place.WAITING)


def reduce_pod(pod: OutcomePod) -> OutcomePod:
    """The reflector's ``transform``: a few hundred bytes."""
    return _reduced(pod, outcome_of(pod))


def reduce_restarted(pod: OutcomePod) -> OutcomePod:
    """As :func:`reduce_pod`, of a pod that runs: its outcome is the last failure of a container."""
    return _reduced(pod, restart_of(pod))


def without_outcome(pod: OutcomePod) -> OutcomePod:
    """As :func:`reduce_pod`, of a pod that was counted: without its outcome."""
    return _reduced(pod, None)


def _reduced(pod: OutcomePod, outcome: PodOutcome | None) -> OutcomePod:
    meta = pod.metadata
    return OutcomePod(
        metadata=Metadata(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            resource_version=meta.resource_version,
            labels=_NOTHING,
            annotations=_NOTHING,
        ),
        outcome=outcome,
    )


_NOTHING: dict[str, str] = {}


def outcome_of(pod: OutcomePod) -> PodOutcome | None:
    """None: a static pod, or one without a node."""
    meta, status = pod.metadata, pod.status
    owner = owner_of(meta)
    if not owner or not pod.spec.node_name:
        return None
    created = seconds(meta.creation_timestamp)
    at = max(bound_at(status), created)
    pending = status.phase == "Pending"
    kind, reason = waiting_kind(status) if pending else kind_of_end(status, deleted=bool(meta.deletion_timestamp))
    if not pending:
        at = max((at, *(seconds(each.finished_at) for each in _all_ended(status) if each.finished_at)))
    return _outcome(pod, owner, kind, reason, at, pending=pending)


def restart_of(pod: OutcomePod) -> PodOutcome | None:
    """The last failure of a container that was started again in place; None if there is none.

    Whether the pod succeeds later does not matter: a pod counts once.
    """
    owner = owner_of(pod.metadata)
    if not owner or not pod.spec.node_name or pod.status.phase != "Running" or pod.metadata.deletion_timestamp:
        return None
    every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    failed = [each.last_state.terminated for each in every if each.last_state.terminated is not None]
    by_end = [(seconds(each.finished_at), each) for each in failed if each.exit_code != 0 and each.finished_at]
    if not by_end:
        return None
    ended_at, last = max(by_end, key=lambda each: each[0])
    kind = _ENDED[last.reason].name if last.reason in _ENDED else APPLICATION_EXIT
    at = max(ended_at, seconds(pod.metadata.creation_timestamp))
    return _outcome(pod, owner, kind, last.reason or "Error", at, pending=False)


def _outcome(pod: OutcomePod, owner: str, kind: str | None, reason: str, at: float, *, pending: bool) -> PodOutcome:
    meta = pod.metadata
    return PodOutcome(
        node=sys.intern(pod.spec.node_name),
        namespace=sys.intern(meta.namespace),
        owner=owner,
        uid=meta.uid,
        kind=kind,
        reason=sys.intern(reason[:REASON_LIMIT]),
        created=seconds(meta.creation_timestamp),
        at=at,
        pending=pending,
        devices=_devices(pod),
    )


def bound_at(status: OutcomeStatus) -> float:
    """When the pod was bound to its node; 0 if its conditions do not say."""
    for condition in status.conditions:
        if condition.type == _SCHEDULED and condition.status == "True" and condition.last_transition_time:
            return seconds(condition.last_transition_time)
    return 0.0


def waiting_kind(status: OutcomeStatus) -> tuple[str, str]:
    """What it would have failed with, if it does not start in time."""
    for each in (*status.init_container_statuses, *status.container_statuses):
        waiting = each.state.waiting
        if waiting is not None and waiting.reason in _WAITING and _WAITING[waiting.reason].name != POD_START:
            return _WAITING[waiting.reason].name, waiting.reason
    return POD_START, "ContainerCreating"


def kind_of_end(status: OutcomeStatus, *, deleted: bool) -> tuple[str | None, str]:
    """(kind, reason) of a pod that has ended, as in :class:`PodOutcome`."""
    if status.phase == "Succeeded":
        return "", ""
    reason = status.reason
    if reason in _POD_EXACT:
        return _POD_EXACT[reason].name, reason  # also Evicted, which has the condition DisruptionTarget too
    if deleted or disruption_of(status) or _is_administrative(reason):
        return None, reason
    if reason == UNEXPECTED:
        return _unexpected(status.message), reason
    for prefix, kind in _POD_PREFIXES:
        if reason.startswith(prefix):
            return kind.name, reason
    ended = [each for each in _all_ended(status) if each.exit_code != 0 or each.reason in _ENDED]
    if not ended:
        # rejected for a reason that is not in the table, or without any trace of its containers
        return (ADMISSION if reason else APPLICATION_EXIT), reason
    worst = next((each for each in ended if each.reason in _ENDED and each.reason != "Error"), ended[0])
    return _ENDED[worst.reason].name if worst.reason in _ENDED else APPLICATION_EXIT, worst.reason or "Error"


def _unexpected(message: str) -> str:
    """The kind of an UnexpectedAdmissionError. Only messages that the device manager begins count as its own: what
    follows may quote the pod."""
    text = message.removeprefix("Pod was rejected: ").removeprefix("Pod ")
    if text.startswith(_PLUGIN_RESOURCES):
        return KUBELET_ADMISSION
    if text.startswith(_ALLOCATE) and text.removeprefix(_ALLOCATE).startswith(_DEVICE_MANAGER):
        return DEVICE_ALLOCATION
    return ADMISSION


def disruption_of(status: OutcomeStatus) -> str:
    """Why the control plane or the kubelet ends the pod: the reason of its condition DisruptionTarget; empty: neither
    does."""
    return next((each.reason or "Unknown" for each in status.conditions if _is_disruption(each)), "")


def _is_disruption(condition: PodCondition) -> bool:
    return condition.type == _DISRUPTION and condition.status == "True"


def _is_administrative(reason: str) -> bool:
    return any(
        reason.startswith(each.name[:-1]) if each.name.endswith("*") else reason == each.name for each in ADMINISTRATIVE
    )


def _all_ended(status: OutcomeStatus) -> list[EndedState]:
    every = (*status.init_container_statuses, *status.container_statuses)
    return [each.state.terminated for each in every if each.state.terminated is not None]


_known_devices: dict[Devices, Devices] = {}  # a fleet has few different requests
_KNOWN_LIMIT = 1024


def _devices(pod: OutcomePod) -> Devices:
    most: dict[str, int] = {}
    for container in pod.spec.containers:
        for name, quantity in container.resources.limits.items():
            if name not in _NATIVE and not name.startswith("hugepages-") and quantity.isdecimal() and len(quantity) < 8:
                most[name] = max(most.get(name, 0), int(quantity))
    if not most:
        return ()
    devices = tuple(sorted((name, count) for name, count in most.items() if count)[:_DEVICE_LIMIT])
    known = _known_devices.get(devices)
    if known is None:
        known = devices
        if len(_known_devices) < _KNOWN_LIMIT:
            _known_devices[devices] = devices
    return known

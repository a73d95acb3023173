"""What the ledger reads of a pod, reduced to a few hundred bytes. Pure.

Times are in seconds since the epoch and in whole seconds, as Kubernetes writes them. Those of containers are the
node's; :mod:`muster_tainter.goodput.pods.attempt` trusts them only between the times that the API server wrote.
"""

import sys
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from muster_kube.api.objects import Api, Metadata, OwnerReference
from muster_kube.api.times import seconds
from muster_tainter.outcomes.kinds import APPLICATION_EXIT, DEVICE_ALLOCATION, EVICTED, KUBELET_ADMISSION
from muster_tainter.outcomes.outcome import bound_at, disruption_of, kind_of_end, outcome_of
from muster_tainter.outcomes.pods import (
    ContainerSpec,
    ContainerStatus,
    EndedState,
    OutcomePod,
    OutcomeSpec,
    OutcomeStatus,
    PodOutcome,
    WaitingState,
)
from muster_tainter.policy.sections.heavy_checks import parse_duration

PATH = "/api/v1/pods"
BOUND: dict[str, str | int | bool] = {"fieldSelector": "spec.nodeName!="}
CHECKPOINT = "muster.dev/checkpoint-interval"  # annotation of a pod, such as 30m
IPUS = "muster.dev/ipus"  # label of a pod that has IPUs by its annotation
IPUS_OF_WORKER = "muster.dev/worker-ipus"  # annotation of the workers of IPUJobs, which reach IPUs over the network
DEVICE_LIMIT = 4096  # of one pod or node; the largest machines have 16, a rack that is one node 72
REASON_LIMIT = 64
_IPU_GROUP = "graphcore.ai/"
# resources that plug-ins offer beside their devices and that do not count devices: shares of memory and of cores
_NO_DEVICES = ("mem", "core", "percent", "priority", "tiles", "monitoring", "neurondevice")


class RunningState(Api, frozen=True):
    started_at: str | None = None


class TimedEnd(EndedState, frozen=True):
    started_at: str | None = None


class TimedState(Api, frozen=True):
    waiting: WaitingState | None = None
    running: RunningState | None = None
    terminated: TimedEnd | None = None


class LedgerContainerStatus(ContainerStatus, frozen=True):
    name: str = ""
    state: TimedState = TimedState()  # type: ignore[assignment]  # the same with more fields
    last_state: TimedState = TimedState()  # type: ignore[assignment]


class LedgerStatus(OutcomeStatus, frozen=True):
    container_statuses: tuple[LedgerContainerStatus, ...] = ()


class LedgerContainer(ContainerSpec, frozen=True):
    name: str = ""


class LedgerClaim(Api, frozen=True):
    name: str = ""


class LedgerSpec(OutcomeSpec, frozen=True):
    restart_policy: str = "Always"
    containers: tuple[LedgerContainer, ...] = ()
    init_containers: tuple[LedgerContainer, ...] = ()
    resource_claims: tuple[LedgerClaim, ...] = ()


class LedgerMetadata(Metadata, frozen=True):
    deletion_grace_period_seconds: int = 0


class End(StrEnum):
    """How a pod, or one run of its containers, ended.

    OWN: its program failed, or it could not be started. NODE: its node rejected it, and is to blame. EVICTED: by the
    eviction API. TAINTED: by a NoExecute taint. PREEMPTED: by the scheduler. LOST: its node is gone. STOPPED: by its
    kubelet, which was short of memory or disk, or shut down. DELETED: by a user or controller, such as its owner.
    """

    NONE = ""
    SUCCEEDED = "succeeded"
    OWN = "own"
    NODE = "node"
    EVICTED = "evicted"
    TAINTED = "tainted"
    PREEMPTED = "preempted"
    LOST = "lost"
    STOPPED = "stopped"
    DELETED = "deleted"


# reasons of the condition DisruptionTarget (k8s.io/api/core/v1), which only the control plane and the kubelet write
_DISRUPTIONS = {
    "EvictionByEvictionAPI": End.EVICTED,
    "DeletionByTaintManager": End.TAINTED,
    "PreemptionByScheduler": End.PREEMPTED,
    "PreemptionByKubeScheduler": End.PREEMPTED,  # before Kubernetes 1.26
    "DeletionByPodGC": End.LOST,
    "TerminationByKubelet": End.STOPPED,
}
_REASONS = {"Preempting": End.PREEMPTED, "NodeLost": End.LOST, "Terminated": End.STOPPED, "NodeShutdown": End.STOPPED}
_KINDS = {KUBELET_ADMISSION: End.NODE, EVICTED: End.STOPPED}


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """on_node:  its devices are resources of its node; IPUs of IPUJobs and claims are not
    gang:       namespace and controller: pods that end together for one cause; empty: none
    service:    its containers restart for ever and it has no checkpoints: nothing is lost when it ends
    checkpoint: seconds between two; 0: it does not say
    bound, started, ended: 0: not yet. started: the run of its containers that goes on
    crashed:    when the last run before that ended, if its containers restart in place; crash, crash_why: how
    leaving:    how it will have ended if its object goes away before its status says that it has ended
    """

    uid: str
    node: str
    namespace: str
    gang: str
    devices: int
    on_node: bool
    service: bool
    checkpoint: float
    bound: float
    started: float
    ended: float
    end: End
    why: str
    crashed: float = 0.0
    crash: End = End.NONE
    crash_why: str = ""
    leaving: End = End.NONE


class LedgerPod(OutcomePod, frozen=True):
    """facts: None as decoded, and of a pod without accelerators; set by ``reduce_pod``, which drops the rest. The API
    has no such field. outcome: only of a pod that was rejected for want of devices; its end is OWN until
    :func:`muster_tainter.goodput.pods.rejection.facts_on` knows the node."""

    metadata: LedgerMetadata
    spec: LedgerSpec = LedgerSpec()
    status: LedgerStatus = LedgerStatus()
    facts: PodFacts | None = msgspec.field(default=None, name="muster.dev/facts")


def reduce_pod(pod: LedgerPod, prefixes: tuple[str, ...]) -> LedgerPod:
    """The reflector's ``transform``. prefixes: of accelerator resources."""
    meta = pod.metadata
    kept = LedgerMetadata(name=meta.name, namespace=sys.intern(meta.namespace), resource_version=meta.resource_version)
    facts = read_pod(pod, prefixes)
    return LedgerPod(metadata=kept, facts=facts, outcome=None if facts is None else _rejection(pod, facts))


def _rejection(pod: LedgerPod, facts: PodFacts) -> PodOutcome | None:
    outcome = outcome_of(pod) if facts.end is End.OWN else None
    return outcome if outcome is not None and outcome.kind == DEVICE_ALLOCATION else None


def read_pod(pod: LedgerPod, prefixes: tuple[str, ...]) -> PodFacts | None:
    """None: it holds no accelerator, or has no node."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    devices, on_node, names = _devices(pod, prefixes)
    if not devices or not spec.node_name or not meta.uid:
        return None
    created = seconds(meta.creation_timestamp)
    bound = max(bound_at(status), created)
    checkpoint = _checkpoint(meta)
    runs = [each for each in status.container_statuses if not names or each.name in names]
    ended, end, why = _end(pod, runs)
    crashed, crash, crash_why = _crash(runs) if not end else (0.0, End.NONE, "")
    return PodFacts(
        uid=meta.uid,
        node=sys.intern(spec.node_name),
        namespace=sys.intern(meta.namespace),
        gang=sys.intern(gang_of(meta)),
        devices=devices,
        on_node=on_node,
        service=spec.restart_policy == "Always" and not checkpoint,
        checkpoint=checkpoint,
        bound=bound,
        started=_started(runs),
        ended=max(ended, bound) if end else 0.0,
        end=end,
        why=sys.intern(why[:REASON_LIMIT]),
        crashed=crashed,
        crash=crash,
        crash_why=sys.intern(crash_why[:REASON_LIMIT]),
        leaving=_leaving(pod),
    )


def gang_of(meta: Metadata) -> str:
    """The controller that creates the pods of one job. Whoever creates a pod chooses it, within its namespace."""
    job_set = meta.labels.get("jobset.sigs.k8s.io/jobset-name", "")
    if job_set:
        return f"{meta.namespace}/JobSet/{job_set}"
    owner = _controller(meta.owner_references)
    return "" if owner is None else f"{meta.namespace}/{owner.kind}/{owner.name}/{owner.uid}"


def _controller(owners: Iterable[OwnerReference]) -> OwnerReference | None:
    return next((each for each in owners if each.controller and each.kind != "Node"), None)


def count_devices(resources: dict[str, str], prefixes: tuple[str, ...]) -> int:
    """Accelerators among the resources of a container or node."""
    return min(DEVICE_LIMIT, sum(_number(value) for name, value in resources.items() if _is_device(name, prefixes)))


def _is_device(name: str, prefixes: tuple[str, ...]) -> bool:
    return name.startswith(prefixes) and not any(word in name.rpartition("/")[2].lower() for word in _NO_DEVICES)


def _number(quantity: str) -> int:
    if quantity.isdecimal() and len(quantity) < 8:
        return int(quantity)
    number = quantity[:-1]  # 8k: a plug-in may offer many shares of a device
    return int(number) * 1000 if quantity.endswith("k") and number.isdecimal() and len(number) < 5 else 0


def _devices(pod: LedgerPod, prefixes: tuple[str, ...]) -> tuple[int, bool, frozenset[str]]:
    """(how many, whether they are resources of the node, names of the containers that have them; empty: all)."""
    spec = pod.spec
    counts = {each.name: count_devices(each.resources.limits, prefixes) for each in spec.containers}
    first = max((count_devices(each.resources.limits, prefixes) for each in spec.init_containers), default=0)
    most = min(DEVICE_LIMIT, max(sum(counts.values()), first))  # as the scheduler counts
    if most:
        return most, True, frozenset(name for name, count in counts.items() if count)
    if spec.resource_claims:
        return len(spec.resource_claims), False, frozenset()
    owner = _controller(pod.metadata.owner_references)
    text = pod.metadata.labels.get(IPUS, "")
    if not text and owner is not None and owner.api_version.startswith(_IPU_GROUP):
        text = pod.metadata.annotations.get(IPUS_OF_WORKER, "")
    return min(DEVICE_LIMIT, _number(text)), False, frozenset()


def _checkpoint(meta: Metadata) -> float:
    """0: the pod does not say, or what it says is no time."""
    try:
        return parse_duration(meta.annotations.get(CHECKPOINT), least_s=1.0)
    except ValueError:
        return 0.0


def _started(runs: Iterable[LedgerContainerStatus]) -> float:
    """When the run that goes on, or the last one, began; 0: there was none."""
    at = 0.0
    for each in runs:
        state = each.state
        text = state.running.started_at if state.running else state.terminated.started_at if state.terminated else None
        at = max(at, seconds(text or ""))
    return at


def _end(pod: LedgerPod, runs: list[LedgerContainerStatus]) -> tuple[float, End, str]:
    """(when, how, reason). (0, NONE, "") while it has not ended, even if its deletion has begun."""
    status, meta = pod.status, pod.metadata
    if status.phase not in ("Succeeded", "Failed"):
        return 0.0, End.NONE, ""
    times = [seconds(each.state.terminated.finished_at or "") for each in runs if each.state.terminated]
    requested = (
        seconds(meta.deletion_timestamp) - meta.deletion_grace_period_seconds if meta.deletion_timestamp else 0.0
    )
    at = max(times, default=0.0) or requested or _condition_at(status)
    if status.phase == "Succeeded" and (not requested or at < requested):
        return at, End.SUCCEEDED, ""
    how = disruption_of(status)
    if how in _DISRUPTIONS:
        return at, _DISRUPTIONS[how], status.reason or how
    if status.reason in _REASONS:
        return at, _REASONS[status.reason], status.reason
    if requested and at >= requested:
        return at, End.DELETED, "Deleted"
    kind, reason = kind_of_end(status, deleted=False)
    if kind is None:
        return at, End.STOPPED, reason or how
    return at, _KINDS.get(kind, End.OWN), reason or kind


def _leaving(pod: LedgerPod) -> End:
    how = _DISRUPTIONS.get(disruption_of(pod.status), End.NONE)
    return how or (End.DELETED if pod.metadata.deletion_timestamp else End.NONE)


def _condition_at(status: LedgerStatus) -> float:
    """When its containers were last ready or not: of a pod that was rejected or lost, about when it ended."""
    return max((seconds(each.last_transition_time or "") for each in status.conditions), default=0.0)


def _crash(runs: list[LedgerContainerStatus]) -> tuple[float, End, str]:
    """The last end of a container of a pod that goes on. Exit 0 is a success that its policy repeats."""
    ends = [end for each in runs for end in (each.state.terminated, each.last_state.terminated) if end is not None]
    last = max(ends, key=lambda end: seconds(end.finished_at or ""), default=None)
    if last is None or not last.finished_at:
        return 0.0, End.NONE, ""
    failed = last.exit_code != 0 or last.reason == "OOMKilled"
    return seconds(last.finished_at), End.OWN if failed else End.SUCCEEDED, last.reason or APPLICATION_EXIT

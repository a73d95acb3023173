"""Derives metrics of a job's life from a write of its status: waits, restarts, moves and IPU time. Pure.

Everything is derived from the status before and after the write, so exactly one write counts each event, whichever
replica writes. Labels have fixed values and never contain the name of a job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from muster_kube.api.times import seconds
from muster_operator.job import pod_outcome
from muster_operator.job.lost_pods import LOST
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status import FAILED, RESTARTING, RUNNING, SUSPENDED, has_condition
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus
from muster_operator.job.types import IPUJob, instances, ipus_per_instance

Cause = Literal["success", "init", "exit", "signal", "oom", "evicted", "node", "deadline", "fault", "other"]
CAUSES: tuple[str, ...] = get_args(Cause)
FaultKind = Literal["NodeFaulty", "NodeNotReady", "NodeGone", "IPUQuarantined", "PoplarRecovery", "other"]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)
DEGRADED = "HealthDegraded"
_DEADLINE = "DeadlineExceeded"
# reasons of a pod's status, set by the kubelet, the scheduler and node controllers
_EVICTED = frozenset({"Evicted", "Preempting", "Preempted"})
_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError"})
_PRE_FLIGHT = "PreFlightFailed"


@dataclass(frozen=True)
class LifeEvents:
    """queued_s: from submission, or the last resume, until all partitions existed; first_running_s: until it first ran.
    restarted, moved: the cause. ran_ipu_s: IPU-seconds of a finished time of running, since ``counted_to``. lost_ipu_s:
    the part of it that was lost; waited_ipu_s: between attempts."""

    queued_s: float | None = None
    first_running_s: float | None = None
    restarted: Cause | None = None
    moved: FaultKind | None = None
    ran_ipu_s: float = 0.0
    lost_ipu_s: tuple[Cause, float] | None = None
    waited_ipu_s: float = 0.0


def count_life_events(
    job: IPUJob, after: IPUJobStatus, pods: Iterable[JobPod], now: float, counted_to: float = 0.0
) -> LifeEvents:
    """job: with the old status. counted_to: when running jobs were last counted; both it and ``now`` are seconds since
    the epoch."""
    before = job.status
    begun = _submitted_at(job)
    ipus = instances(job.spec) * ipus_per_instance(job.spec)
    restarted = after.restart_count > before.restart_count
    moved = (after.moves, after.instance_moves) != (before.moves, before.instance_moves)
    fails = has_condition(after, FAILED) and not has_condition(before, FAILED)
    cause: Cause | None = None
    if restarted or fails:
        cause = _find_cause(after, pods, restarted=restarted)
    elif moved:
        cause = "fault"
    since = _true_since(before, RUNNING)
    stops = since is not None and not has_condition(after, RUNNING)
    lost = None
    if cause is not None and cause != "success" and since is not None:
        lost = cause, _lost_ipu_s(job, after, since, now)
    waits = _true_since(before, RESTARTING)
    return LifeEvents(
        queued_s=_span(begun, now) if _has_first_partitions(before, after) else None,
        first_running_s=_span(begun, now) if before.first_running_time is None and after.first_running_time else None,
        restarted=cause if restarted else None,
        moved=_fault_kind(before, after) if after.moves > before.moves else None,
        ran_ipu_s=ipus * _span(max(since, counted_to), now) if since is not None and stops else 0.0,
        lost_ipu_s=lost,
        waited_ipu_s=ipus * _span(waits, now) if waits is not None and has_condition(after, RUNNING) else 0.0,
    )


def _lost_ipu_s(job: IPUJob, after: IPUJobStatus, since: float, now: float) -> float:
    """Since the job runs, or since an instance that moves or restarts alone last did."""
    before, each_ipus = job.status, ipus_per_instance(job.spec)
    moved = sum(count != before.instance_moves.get(each, 0) for each, count in after.instance_moves.items())
    restarted = [
        seconds(former.start_time) if (former := before.instance_restarts.get(each)) is not None else 0.0
        for each, restart in after.instance_restarts.items()
        if restart != before.instance_restarts.get(each)
    ]
    if not moved and not restarted:
        return instances(job.spec) * each_ipus * _span(since, now)
    return each_ipus * (moved * _span(since, now) + sum(_span(max(since, began), now) for began in restarted))


def running_ipu_s(jobs: Iterable[IPUJob], counted_to: float, now: float) -> float:
    """IPU-seconds of running jobs since ``counted_to``."""
    total = 0.0
    for job in jobs:
        since = _true_since(job.status, RUNNING)
        if since is not None:
            total += instances(job.spec) * ipus_per_instance(job.spec) * _span(max(since, counted_to), now)
    return total


def _has_first_partitions(before: IPUJobStatus, after: IPUJobStatus) -> bool:
    """Later partitions, after a restart or a scale, do not count as the end of the first wait."""
    first = before.first_running_time is None and not before.attempt and not has_condition(after, SUSPENDED)
    return first and after.ipu_partition_created and not before.ipu_partition_created


def _submitted_at(job: IPUJob) -> float:
    """When the job began to wait."""
    resumed = any(each.type == SUSPENDED for each in job.status.conditions)
    return seconds((resumed and job.status.start_time) or job.metadata.creation_timestamp)


def _span(since: float, now: float) -> float:
    """Never negative, even if the clock was set back."""
    return max(0.0, now - since) if since else 0.0


def _true_since(status: IPUJobStatus, kind: str) -> float | None:
    found: IPUJobCondition | None = next((each for each in status.conditions if each.type == kind), None)
    return seconds(found.last_transition_time) if found is not None and found.status == "True" else None


def _find_cause(after: IPUJobStatus, pods: Iterable[JobPod], *, restarted: bool) -> Cause:
    conditions: Mapping[str, IPUJobCondition] = {each.type: each for each in after.conditions if each.status == "True"}
    if FAILED in conditions and conditions[FAILED].reason in (_DEADLINE, DEGRADED):
        return "deadline" if conditions[FAILED].reason == _DEADLINE else "fault"
    if any(kind in conditions and LOST in conditions[kind].message for kind in (FAILED, RESTARTING)):
        return "node"  # the lost pods report nothing
    failed = [pod for pod in pod_outcome.failed_pods(pods) if not pod.metadata.deletion_timestamp]
    if not failed:
        return "success" if restarted else "other"
    return min((_cause_of_pod(pod) for pod in failed), key=_WORST.index)


# external causes precede those that follow from them
_WORST: tuple[Cause, ...] = ("node", "evicted", "oom", "init", "signal", "exit", "other")


def _cause_of_pod(pod: JobPod) -> Cause:
    status = pod.status
    if status.reason in _NODE:
        return "node"
    if status.reason in _EVICTED:
        return "evicted"
    ended = [each.state.terminated for each in status.container_statuses if each.state.terminated is not None]
    if any(each.reason == "OOMKilled" for each in ended):
        return "oom"
    inits = [each.state.terminated for each in status.init_container_statuses if each.state.terminated is not None]
    if any(each.exit_code or each.signal for each in inits):
        return "init"
    bad = [each for each in ended if each.exit_code or each.signal]
    if not bad:
        return "other"
    return "signal" if any(each.signal or each.exit_code > 128 for each in bad) else "exit"


def _fault_kind(before: IPUJobStatus, after: IPUJobStatus) -> FaultKind:
    """The fault that caused the move, from the condition or, if the job moved at once, from the move."""
    reasons = [each.reason for each in before.conditions if each.type == DEGRADED and each.status == "True"]
    if after.last_move is not None:
        reasons.append(after.last_move.reason)
    for reason in reasons:
        if reason == _PRE_FLIGHT:
            return "NodeFaulty"
        if reason in FAULT_KINDS:
            return reason  # type: ignore[return-value]  # it is one of them
    return "other"

"""What a write of a job's status says of its life, for the metrics: waits, restarts, moves, and IPU time. Pure.

All is taken from the status before the write and the one after it, so each event is counted by the one write that makes
it so, whichever replica does that. Labels are of fixed sets; no name of a job is one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from muster_kube.api.times import seconds
from muster_operator.job import pod_outcome
from muster_operator.job.lost_pods import LOST
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status import FAILED, RESTARTING, RUNNING, SUSPENDED, has_condition
from muster_operator.job.types import IPUJob, IPUJobCondition, IPUJobStatus, instances, ipus_per_instance

Cause = Literal["success", "init", "exit", "signal", "oom", "evicted", "node", "deadline", "fault", "other"]
CAUSES: tuple[str, ...] = get_args(Cause)
FaultKind = Literal["NodeFaulty", "NodeNotReady", "NodeGone", "IPUQuarantined", "PoplarRecovery", "other"]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)
DEGRADED = "HealthDegraded"
_DEADLINE = "DeadlineExceeded"
# set by kubelet, scheduler and node controllers as the reason of a pod's status
_EVICTED = frozenset({"Evicted", "Preempting", "Preempted"})
_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError"})
_PRE_FLIGHT = "PreFlightFailed"


@dataclass(frozen=True)
class LifeEvents:
    """queued_s: from submission, or the last resume, until all partitions were there; first_running_s: until it first
    ran. restarted, moved: why. ran_ipu_s: of a time of running that is over, in IPU-seconds, since ``counted_to``.
    lost_ipu_s: of it what came to nothing; waited_ipu_s: between attempts."""

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
    """job: with the status before. counted_to: up to when running jobs are counted already, as ``now`` in seconds since
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
        concerned = sum(count != before.instance_moves.get(each, 0) for each, count in after.instance_moves.items())
        lost = cause, (ipus if not concerned else concerned * ipus_per_instance(job.spec)) * _span(since, now)
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


def running_ipu_s(jobs: Iterable[IPUJob], counted_to: float, now: float) -> float:
    """IPU-seconds of those that run, since ``counted_to``."""
    total = 0.0
    for job in jobs:
        since = _true_since(job.status, RUNNING)
        if since is not None:
            total += instances(job.spec) * ipus_per_instance(job.spec) * _span(max(since, counted_to), now)
    return total


def _has_first_partitions(before: IPUJobStatus, after: IPUJobStatus) -> bool:
    """Later ones, after a restart or a scale, are no end of its waiting."""
    first = before.first_running_time is None and not before.attempt
    return first and after.ipu_partition_created and not before.ipu_partition_created


def _submitted_at(job: IPUJob) -> float:
    """When it began to wait."""
    resumed = any(each.type == SUSPENDED for each in job.status.conditions)
    return seconds((resumed and job.status.start_time) or job.metadata.creation_timestamp)


def _span(since: float, now: float) -> float:
    """A clock that was set back makes none."""
    return max(0.0, now - since) if since else 0.0


def _true_since(status: IPUJobStatus, kind: str) -> float | None:
    found: IPUJobCondition | None = next((each for each in status.conditions if each.type == kind), None)
    return seconds(found.last_transition_time) if found is not None and found.status == "True" else None


def _find_cause(after: IPUJobStatus, pods: Iterable[JobPod], *, restarted: bool) -> Cause:
    told: Mapping[str, IPUJobCondition] = {each.type: each for each in after.conditions if each.status == "True"}
    if FAILED in told and told[FAILED].reason in (_DEADLINE, DEGRADED):
        return "deadline" if told[FAILED].reason == _DEADLINE else "fault"
    if any(kind in told and LOST in told[kind].message for kind in (FAILED, RESTARTING)):
        return "node"  # its pods say nothing any more
    failed = [pod for pod in pod_outcome.failed_pods(pods) if not pod.metadata.deletion_timestamp]
    if not failed:
        return "success" if restarted else "other"
    return min((_cause_of_pod(pod) for pod in failed), key=_WORST.index)


# what is nobody's own doing says more than what follows from it
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
    """What was bad: as the condition has told, or, where it moves at once, as the move does."""
    told = [each.reason for each in before.conditions if each.type == DEGRADED and each.status == "True"]
    if after.last_move is not None:
        told.append(after.last_move.reason)
    for reason in told:
        if reason == _PRE_FLIGHT:
            return "NodeFaulty"
        if reason in FAULT_KINDS:
            return reason  # type: ignore[return-value]  # it is one of them
    return "other"

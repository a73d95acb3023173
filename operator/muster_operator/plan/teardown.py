"""Removes what a job has: during its deletion, after its end and while it is suspended.

Pods go before partitions: a partition is only released once nothing of the job can use its IPUs.
"""

from collections.abc import Iterable, Mapping

from msgspec import UnsetType

from muster_operator.job import lost_pods, names, pod_outcome, status, timers
from muster_operator.job.kueue import QUEUE
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import (
    Action,
    AddFinalizer,
    DeleteJob,
    DeletePod,
    FreePartition,
    JobPlan,
    JobPod,
    RecordEvent,
    RemoveFinalizer,
)
from muster_operator.job.status import COMPLETE, FAILED, SUSPENDED, StatusUpdate
from muster_operator.job.types import FINALIZER
from muster_operator.plan import waiting_reason
from muster_operator.plan.hardware.degradation import DEGRADED
from muster_operator.plan.job_state import JobState

# activeDeadlineSeconds and healthPolicy.onFault Fail stop a job whose pods still run
_STOPPED_BY_SPEC = ("DeadlineExceeded", DEGRADED)


def delete_job(state: JobState) -> JobPlan | None:
    """Pods, then partitions, then the finalizer (behaviours 34, 35). Kubernetes garbage-collects the rest."""
    if not state.job.metadata.deletion_timestamp:
        return None
    if FINALIZER not in state.job.metadata.finalizers:
        return JobPlan()
    if state.pods:
        return JobPlan(_delete_pods(state, state.pods.values()), again_s=_next_forced_s(state))
    if not state.entries:
        return JobPlan((RemoveFinalizer(),))
    line = waiting_reason.describe_release_wait(state.entries, state.snapshot)
    return JobPlan(
        _free_partitions(state.entries),
        status.compose_message(state.job, line, state.snapshot.now) if line else None,
    )


def add_finalizer(state: JobState) -> JobPlan | None:
    """The finalizer is added before anything exists that has to be released (behaviour 16)."""
    return None if FINALIZER in state.job.metadata.finalizers else JobPlan((AddFinalizer(),))


def clean_up(state: JobState) -> JobPlan | None:
    """A finished job creates nothing again, even after a new leader starts or objects are deleted by hand (behaviours
    37, 43).

    With ``cleanPodPolicy`` None all pods stay, also after a failure and if they still run. With Workers, a failed job's
    launcher is stopped if it still runs, because mpirun may wait for its workers for ever (57).
    """
    job, now = state.job, state.snapshot.now
    if not status.is_finished(job.status):
        return None
    expiry = timers.expiry(job)
    if expiry is not None and now >= expiry:
        return JobPlan((DeleteJob(),))
    workers = [pod for pod in state.pods.values() if pod.metadata.labels.get(names.ROLE) == names.WORKER]
    failed = status.has_condition(job.status, FAILED)
    everything = _is_all_cleaned(state, success=not failed)
    kind = FAILED if failed else COMPLETE
    ended = next(each for each in job.status.conditions if each.type == kind)
    stops = state.setup.free_partitions_at_end or (
        failed and (job.spec.clean_pod_policy != "None" or ended.reason in _STOPPED_BY_SPEC)
    )
    doomed = [
        pod
        for pod in state.pods.values()
        if everything
        or (job.spec.clean_pod_policy == "Workers" and pod in workers)
        or (stops and not pod_outcome.has_ended(pod))
    ]
    actions: tuple[Action, ...] = _delete_pods(state, doomed)
    frees = everything or state.setup.free_partitions_at_end
    if not doomed and frees and all(pod_outcome.has_ended(pod) for pod in state.pods.values()):
        actions = _free_partitions(state.entries)
    update = StatusUpdate(
        kind,
        job.status.last_message,
        desired=job.status.desired_replicas,
        partitions=job.status.ipu_partition_created and bool(state.entries),
        reason=ended.reason,
        message=ended.message,
    )
    again_s = timers.next_s(now, expiry, *lost_pods.force_delete_times(doomed, state.snapshot))
    return JobPlan(actions, status.compose_status(job, update, workers, now), again_s=again_s)


def describe_cleanup(state: JobState, *, success: bool) -> str:
    """What happens to the partitions of a finished job, for people."""
    if _is_all_cleaned(state, success=success) or state.setup.free_partitions_at_end:
        return "its partitions are released"
    ttl_s = state.job.spec.ttl_seconds_after_finished
    when = "" if isinstance(ttl_s, UnsetType) else f", {ttl_s} s after its end"
    return f"its partitions are kept until the job is deleted{when}"


def suspend(state: JobState) -> JobPlan | None:
    """No pods and no partitions; the small objects may stay (behaviour 44)."""
    job = state.job
    if not job.spec.suspend and not _is_being_suspended(state):
        return None
    actions = _delete_pods(state, state.pods.values()) if state.pods else _free_partitions(state.entries)
    queue = job.metadata.labels.get(QUEUE)
    line = f"suspended, in queue {queue}" if queue else "suspended"
    events: tuple[Action, ...] = ()
    if not status.has_condition(job.status, SUSPENDED):
        events = (RecordEvent("Normal", "IPUJobSuspended", "its pods are deleted and its partitions released"),)
    update = StatusUpdate(
        SUSPENDED,
        line,
        desired=state.instances,
        # until pods are gone and partitions released: by this a queue knows when the job's quota is free again
        partitions=bool(state.entries),
    )
    written = status.compose_status(job, update, (), state.snapshot.now)
    return JobPlan((*actions, *events), written, again_s=_next_forced_s(state))


def _is_being_suspended(state: JobState) -> bool:
    """Resumed before everything was gone: existing pods may no longer be what is wanted (behaviour 44)."""
    return status.has_condition(state.job.status, SUSPENDED) and bool(state.pods or state.entries)


def _is_all_cleaned(state: JobState, *, success: bool) -> bool:
    """A finished session leaves nothing behind (behaviour 46)."""
    spec = state.job.spec
    return spec.clean_pod_policy == "All" or (success and not isinstance(spec.interactive, UnsetType))


def _delete_pods(state: JobState, pods: Iterable[JobPod]) -> tuple[DeletePod, ...]:
    """Delete all these pods; by force those that are lost with their node."""
    actions = []
    for pod in pods:
        forced_at = lost_pods.force_delete_at(pod, state.snapshot)
        if forced_at is not None and state.snapshot.now >= forced_at:
            actions.append(DeletePod(pod.metadata.name, pod.metadata.uid, 0))
        elif not pod.metadata.deletion_timestamp:
            actions.append(DeletePod(pod.metadata.name, pod.metadata.uid))
    return tuple(actions)


def _next_forced_s(state: JobState) -> float | None:
    snapshot = state.snapshot
    return timers.next_s(snapshot.now, *lost_pods.force_delete_times(state.pods.values(), snapshot))


def _free_partitions(entries: Mapping[str, PartitionEntry]) -> tuple[FreePartition, ...]:
    return tuple(FreePartition(name) for name, entry in sorted(entries.items()) if entry.state != "deleting")

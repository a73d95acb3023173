"""The status of a job: counts, conditions and one message line.

The conditions hold the state: whether a job has finished, is suspended or has been running is read from them, and
``launcherStatus`` derives from them. Times change only together with other fields, so the status of an idle job is not
written.

| conditions | launcherStatus |
|---|---|
| Failed is True | Failed |
| Complete is True | Completed |
| Running is True | Running |
| none of them | Pending |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import names, pod_outcome
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus, LauncherStatus, WorkersStatus
from muster_operator.job.types import IPUJob, workers_per_instance

PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
SUSPENDED, COMPLETE, FAILED = "Suspended", "Complete", "Failed"
INVALID = "Invalid"  # beside the others: the operator creates nothing from this spec
_ORDER = (PENDING, RUNNING, RESTARTING, SUSPENDED, COMPLETE, FAILED)

# texts as observed at users' sites
RECONCILED = "Successfully reconciled IPUJob"
NOT_READY = "partition not ready yet!"
DONE = "All instances done"


@dataclass(frozen=True)
class StatusUpdate:
    """state: one of the condition types above; reason and message: of that condition, "" for the defaults. desired,
    current: instances. partitions: every instance has its partition. line: lastMessage. next_attempt: start of the next
    attempt of a restarting job. started: the whole job has started, so earlier releases of partitions no longer count.
    """

    state: str
    line: str
    desired: int
    current: int = 0
    partitions: bool = False
    reason: str = ""
    message: str = ""
    next_attempt: str | None = None
    started: bool = False


def has_condition(status: IPUJobStatus, kind: str) -> bool:
    return any(each.type == kind and each.status == "True" for each in status.conditions)


def is_finished(status: IPUJobStatus) -> bool:
    return has_condition(status, COMPLETE) or has_condition(status, FAILED)


def is_written_first(before: IPUJobStatus, after: IPUJobStatus) -> bool:
    """Whether the new status must be written before the operator acts, because the next decision depends on it even
    after a crash, or because it is the first status that the user sees."""
    attempts = (before.attempt, before.restart_count) != (after.attempt, after.restart_count)
    attempts = attempts or (before.moves, before.instance_moves) != (after.moves, after.instance_moves)
    moved = any(has_condition(before, kind) != has_condition(after, kind) for kind in (SUSPENDED, COMPLETE, FAILED))
    given_back = after.given_back is not None and before.given_back != after.given_back
    checked = after.pre_flight is not None and before.pre_flight != after.pre_flight
    # many partitions take their time: who has scaled the job sees at once that the operator knows
    scaled = before.desired_replicas != after.desired_replicas
    return attempts or moved or given_back or checked or scaled or (not is_accepted(before) and is_accepted(after))


def is_accepted(status: IPUJobStatus) -> bool:
    """Whether the job has had a valid spec and a status that follows from it."""
    return any(each.type != INVALID for each in status.conditions)


def launcher_status(conditions: Iterable[IPUJobCondition]) -> LauncherStatus:
    true = {each.type for each in conditions if each.status == "True"}
    if FAILED in true:
        return "Failed"
    if COMPLETE in true:
        return "Completed"
    return "Running" if RUNNING in true else "Pending"


def compose_status(job: IPUJob, stand: StatusUpdate, workers: Iterable[JobPod], now: float) -> IPUJobStatus | None:
    """The status to write; None: the current one is up to date. now: seconds since the epoch (behaviour 36)."""
    at = rfc3339_whole(now)
    before = job.status
    conditions = _compose_conditions(job, stand, at)
    over = stand.state in (COMPLETE, FAILED)
    after = msgspec.structs.replace(
        before,
        desired_replicas=stand.desired,
        current_replicas=stand.current,
        last_message=pod_outcome.shorten(stand.line),
        launcher_status=launcher_status(conditions),
        ipu_partition_created=stand.partitions,
        selector=_selector(job),
        start_time=None if stand.state == SUSPENDED else before.start_time or at,
        first_running_time=_first_running(before, stand, at),
        next_attempt_time=stand.next_attempt,
        given_back=None if over or stand.started or stand.state == SUSPENDED else before.given_back,
        pre_flight=None if stand.state == SUSPENDED else before.pre_flight,
        suspected=None if stand.state == SUSPENDED else before.suspected,
        completion_time=(before.completion_time or at) if over else None,
        observed_generation=job.metadata.generation,
        workers_status=_count_workers(workers, before.workers_status if over else None),
        conditions=conditions,
    )
    return None if after == before else msgspec.structs.replace(after, last_reconcile_time=at)


def _selector(job: IPUJob) -> str:
    """One pod of each instance: an autoscaler counts the pods that match, and takes their number for that of the
    instances."""
    selector = f"{names.JOB_UID}={job.metadata.uid},{names.ROLE}={names.WORKER}"
    return selector if workers_per_instance(job.spec) == 1 else f"{selector},{names.NUMBER}=0"


def _first_running(before: IPUJobStatus, stand: StatusUpdate, at: str) -> str | None:
    if stand.state == SUSPENDED:
        return None
    return before.first_running_time or (at if stand.state == RUNNING else None)


def compose_message(job: IPUJob, line: str, now: float) -> IPUJobStatus | None:
    """As :func:`compose_status`, but changes only lastMessage."""
    text = pod_outcome.shorten(line)
    if job.status.last_message == text and job.status.observed_generation == job.metadata.generation:
        return None
    return msgspec.structs.replace(
        job.status,
        last_message=text,
        observed_generation=job.metadata.generation,
        last_reconcile_time=rfc3339_whole(now),
    )


def compose_refusal(job: IPUJob, line: str, now: float) -> IPUJobStatus | None:
    """As :func:`compose_status`, for a spec with errors: changes only lastMessage and the condition Invalid."""
    text = pod_outcome.shorten(line)
    judged = msgspec.structs.replace(job.status, last_message=text, observed_generation=job.metadata.generation)
    return _with_invalid(job, judged, "True", "ValidationError", text, now)


def compose_acceptance(job: IPUJob, now: float) -> IPUJobStatus | None:
    """As :func:`compose_status`, for a spec without errors: ends the condition Invalid."""
    if not has_condition(job.status, INVALID):
        return None
    return _with_invalid(job, job.status, "False", "Valid", "the spec has no errors", now)


def _with_invalid(
    job: IPUJob, status: IPUJobStatus, invalid: str, reason: str, text: str, now: float
) -> IPUJobStatus | None:
    at = rfc3339_whole(now)
    old = next((each for each in job.status.conditions if each.type == INVALID), None)
    new = _update_condition(old, INVALID, invalid, reason, text, job, at)
    others = (each for each in status.conditions if each.type != INVALID)
    after = msgspec.structs.replace(status, conditions=(*others, new))
    return None if after == job.status else msgspec.structs.replace(after, last_reconcile_time=at)


def _compose_conditions(job: IPUJob, stand: StatusUpdate, at: str) -> tuple[IPUJobCondition, ...]:
    """Pending and Running are always present; the other conditions appear once they have been True."""
    known = {each.type: each for each in job.status.conditions}
    who = f"IPUJob {job.metadata.namespace}/{job.metadata.name}"
    usual: Mapping[str, tuple[str, str]] = {
        PENDING: ("IPUJobPending", f"{who} is waiting for resources to be ready."),
        RUNNING: ("IPUJobRunning", f"{who} is running."),
        RESTARTING: ("IPUJobRestarting", f"{who} is restarting."),
        SUSPENDED: ("IPUJobSuspended", f"{who} is suspended."),
        COMPLETE: ("IPUJobCompleted", f"{who} has completed."),
        FAILED: ("IPUJobFailed", f"{who} has failed."),
    }
    found = []
    for kind in _ORDER:
        old = known.pop(kind, None)
        if kind == stand.state:
            reason, message = usual[kind]
            new = _update_condition(
                old, kind, "True", stand.reason or reason, pod_outcome.shorten(stand.message) or message, job, at
            )
        elif old is not None or kind == PENDING:
            reason, message = (old.reason, old.message) if old is not None else usual[kind]
            if kind == SUSPENDED and old is not None and old.status == "True":
                reason, message = "IPUJobResumed", f"{who} is not suspended."
            new = _update_condition(old, kind, "False", reason, message, job, at)
        else:
            continue
        found.append(new)
    return (*found, *known.values())


def _update_condition(
    old: IPUJobCondition | None, kind: str, status: str, reason: str, message: str, job: IPUJob, at: str
) -> IPUJobCondition:
    same_status = old is not None and old.status == status
    same = same_status and old is not None and (old.reason, old.message) == (reason, message)
    return IPUJobCondition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        observed_generation=job.metadata.generation,
        last_update_time=old.last_update_time if same and old is not None else at,
        last_transition_time=old.last_transition_time if same_status and old is not None else at,
    )


def _count_workers(workers: Iterable[JobPod], kept: WorkersStatus | None) -> WorkersStatus:
    """active: created and not ended, as batch Jobs count. kept: previous counts of a finished job, because pods that
    were cleaned up still count."""
    active = succeeded = ended_badly = 0
    for pod in workers:
        active += not pod_outcome.has_ended(pod) and not pod.metadata.deletion_timestamp
        succeeded += pod.status.phase == pod_outcome.SUCCEEDED
        ended_badly += pod.status.phase == pod_outcome.FAILED
    if kept is not None:
        succeeded, ended_badly = max(succeeded, kept.succeeded), max(ended_badly, kept.failed)
    return WorkersStatus(active=active, succeeded=succeeded, failed=ended_badly)

"""The end of an attempt: either the job ends or another attempt begins. The status records it before any action."""

import msgspec

from muster_operator.job import pod_outcome, status, timers
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobPlan, RecordEvent
from muster_operator.job.status import COMPLETE, FAILED, RESTARTING, StatusUpdate
from muster_operator.plan import restart_policy, teardown
from muster_operator.plan.hardware import full_reset, poplar_recovery
from muster_operator.plan.job_state import JobState
from muster_operator.plan.restart_policy import RestartDecision


def end_attempt(state: JobState) -> JobPlan | None:
    """The end of the attempt or the job; None: it continues. If the job ended and its deadline has passed too, its own
    end counts."""
    job, now, end = state.job, state.snapshot.now, state.end
    decision = restart_policy.decide_restart(job, end) if end is not None else RestartDecision(False)
    if end is not None and not decision.again:
        return end_job(state, end, decision)
    session_end, deadline = timers.session_end(job), timers.deadline(job)
    if session_end is not None and now >= session_end:
        return end_job(state, AttemptEnd(True), RestartDecision(False, "SessionEnded"))
    if deadline is not None and now >= deadline:
        why = f"the job did not end within its activeDeadlineSeconds ({job.spec.active_deadline_seconds})"
        late = AttemptEnd(False, f"{why}; {end.why}" if end is not None and end.why else why)
        return end_job(state, late, RestartDecision(False, "DeadlineExceeded"))
    return _begin_next(state, end) if end is not None else None


def end_job(state: JobState, end: AttemptEnd, decision: RestartDecision) -> JobPlan:
    """The status is written first and alone: pods that are cleaned up afterwards could no longer show how the job
    ended."""
    job, now, partitions = state.job, state.snapshot.now, not state.unready_instances
    cleanup = teardown.describe_cleanup(state, success=end.success)
    if end.success:
        what = "is over: its ttl has passed" if decision.reason == "SessionEnded" else "has completed"
        message = f"IPUJob {job.metadata.namespace}/{job.metadata.name} {what}; {cleanup}."
        update = StatusUpdate(COMPLETE, status.DONE, state.instances, 0, partitions, decision.reason, message)
        return JobPlan((), status.compose_status(job, update, state.workers, now))
    why = pod_outcome.shorten(end.why, pod_outcome.LIMIT - 200)
    why = f"{why}; {decision.note}" if decision.note else why
    update = StatusUpdate(FAILED, why, state.instances, 0, partitions, decision.reason, f"{why}; {cleanup}")
    event = RecordEvent("Warning", decision.reason or "IPUJobFailed", why)
    known = msgspec.structs.replace(job, status=full_reset.suspect_nodes(state, end.pods, job.status))
    return JobPlan(
        (event, *poplar_recovery.report_full_reset(state, end.pods)),
        status.compose_status(known, update, state.workers, now),
    )


def _begin_next(state: JobState, end: AttemptEnd) -> JobPlan:
    """The new attempt is in the status before any action, so it is counted once even if the leader changes."""
    job, now, before = state.job, state.snapshot.now, state.job.status
    at = restart_policy.next_attempt_time(job, end, now, state.setup)
    message = restart_policy.describe_restart(job, end, at)
    changed = msgspec.structs.replace(before, attempt=before.attempt + 1, restart_count=before.restart_count + 1)
    update = StatusUpdate(RESTARTING, message, desired=state.instances, message=message, next_attempt=at)
    events = (RecordEvent("Warning", "IPUJobRestarting", message), *poplar_recovery.report_full_reset(state, end.pods))
    changed = full_reset.suspect_nodes(state, end.pods, changed)
    return JobPlan(events, status.compose_status(msgspec.structs.replace(job, status=changed), update, (), now))

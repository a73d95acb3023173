"""A job whose workers' template has changed: how that begins, and what is told of it.

Without a launcher and by RollingUpdate instances are replaced one after the other
(:mod:`muster_operator.plan.rollout`). Else the job begins anew as a whole, as after a restart, which it is not counted
as: by Recreate, or with a launcher, where admission lets nobody change the template but while it is suspended; that it
was then suspended and resumed while no operator looked. Either way a new attempt is in the status before anything is
done, so that partitions are reset.
"""

from dataclasses import replace

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import names, pod_outcome, status
from muster_operator.job.snapshot import JobPlan, JobPod, RecordEvent
from muster_operator.job.status import RESTARTING, StatusUpdate
from muster_operator.job.types import IPUJobStatus
from muster_operator.plan import rollout, waiting_reason
from muster_operator.plan.job_state import JobState

EVENT = "RollingUpdate"


def begin_replacement(state: JobState) -> JobPlan | None:
    """None: nothing is to be replaced, or the attempt for it has begun."""
    if _is_restarting(state):
        return None
    if state.with_launcher or rollout.recreates_pods(state.job):
        found = (*state.workers, *([state.launcher] if state.launcher is not None else []))
        if all(state.is_of_template(pod) for pod in found):
            return None
        return _replace_all(state)
    if not any(
        pod.metadata.labels.get(names.ATTEMPT) == str(state.attempt_of(instance))
        for instance in state.rollout.replace
        for pod in state.present_workers(instance)
    ):
        return None
    return JobPlan((), _next_attempt(state))


def adopt_template(state: JobState, decided: JobPlan) -> JobPlan:
    """``decided``, with which template pods without a label count as of, as long as there are any.

    No time moves with it: where the CRD is older than the field, what is written is nothing, and wakes nobody."""
    if not state.goes_on:
        return decided
    are_there = any(names.TEMPLATE not in pod.metadata.labels for pod in state.pods.values())
    adopted = (state.job.status.adopted_template or state.digest) if are_there else ""
    base = decided.status or state.job.status
    if base.adopted_template == adopted:
        return decided
    return replace(decided, status=msgspec.structs.replace(base, adopted_template=adopted))


def _is_restarting(state: JobState) -> bool:
    return status.has_condition(state.job.status, RESTARTING)


def _next_attempt(state: JobState) -> IPUJobStatus:
    now = rfc3339_whole(state.snapshot.now)
    return msgspec.structs.replace(state.job.status, attempt=state.attempt + 1, last_reconcile_time=now)


def _replace_all(state: JobState) -> JobPlan:
    message = "the workers' template has changed: all its pods go first"
    job = msgspec.structs.replace(state.job, status=_next_attempt(state))
    at = rfc3339_whole(state.snapshot.now)
    stand = StatusUpdate(RESTARTING, message, desired=state.instances, message=message, next_attempt=at)
    return JobPlan((RecordEvent("Normal", EVENT, message),), status.compose_status(job, stand, (), state.snapshot.now))


def rollout_events(state: JobState) -> tuple[RecordEvent, ...]:
    """The same words each time: an Event tells them once."""
    limits = state.rollout.limits
    if limits is None:
        return ()
    bounds = f"at most {limits.unavailable} missing and {limits.surge} more than {state.instances} at once"
    text = f"the workers' template has changed ({state.digest}): instances are replaced, {bounds}"
    failed = _describe_failure(state)
    stopped = (RecordEvent("Warning", "RollingUpdateStopped", failed),) if failed and not state.rollout.replace else ()
    return (RecordEvent("Normal", EVENT, text), *stopped)


def describe_rollout(state: JobState) -> str:
    """lastMessage while a template is rolled out; empty: none is."""
    found = state.rollout
    if found.limits is None and not (state.replaced_instances.difference(state.moved_instances) and state.is_running):
        return ""
    text = f"rolling update: {found.done} of {state.instances} instances are of the changed template"
    if found.replace:
        return text
    if failed := _describe_failure(state):
        return f"{text}; stopped: {failed}"
    said = [
        state.snapshot.refusals[name].message
        for each in state.instances_to_take
        if (name := state.partition(each)) in state.snapshot.refusals
    ]
    if said:
        return f"{text}; waits for room: {said[0]}"
    waits = waiting_reason.describe_pending_pods(state)
    return f"{text}; waits: {waits}" if waits else text


def _describe_failure(state: JobState) -> str:
    """Of the changed template only: the others are on their way out anyway."""
    found = [pod for pod in _workers(state) if state.is_of_template(pod)]
    failed = pod_outcome.failed_pods(found)
    return pod_outcome.describe_failure(failed[0]) if failed else ""


def _workers(state: JobState) -> list[JobPod]:
    return [pod for instance in state.active_instances for pod in state.present_workers(instance)]

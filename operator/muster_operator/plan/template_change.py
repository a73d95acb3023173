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


def begin_replacement(here: JobState) -> JobPlan | None:
    """None: nothing is to be replaced, or the attempt for it has begun."""
    if _is_restarting(here):
        return None
    if here.with_launcher or rollout.recreates_pods(here.job):
        found = (*here.workers, *([here.launcher] if here.launcher is not None else []))
        if all(here.is_of_template(pod) for pod in found):
            return None
        return _anew(here)
    if not any(
        pod.metadata.labels.get(names.ATTEMPT) == str(here.attempt_of(instance))
        for instance in here.rollout.replace
        for pod in here.there(instance)
    ):
        return None
    return JobPlan((), _next_attempt(here))


def adopt_template(here: JobState, decided: JobPlan) -> JobPlan:
    """``decided``, with which template pods without a label count as of, as long as there are any.

    No time moves with it: where the CRD is older than the field, what is written is nothing, and wakes nobody."""
    are_there = any(names.TEMPLATE not in pod.metadata.labels for pod in here.pods.values())
    adopted = (here.job.status.adopted_template or here.digest) if are_there else ""
    base = decided.status or here.job.status
    if base.adopted_template == adopted:
        return decided
    return replace(decided, status=msgspec.structs.replace(base, adopted_template=adopted))


def _is_restarting(here: JobState) -> bool:
    return status.has_condition(here.job.status, RESTARTING)


def _next_attempt(here: JobState) -> IPUJobStatus:
    now = rfc3339_whole(here.seen.now)
    return msgspec.structs.replace(here.job.status, attempt=here.attempt + 1, last_reconcile_time=now)


def _anew(here: JobState) -> JobPlan:
    message = "the workers' template has changed: all its pods go first"
    job = msgspec.structs.replace(here.job, status=_next_attempt(here))
    at = rfc3339_whole(here.seen.now)
    stand = StatusUpdate(RESTARTING, message, desired=here.instances, message=message, next_attempt=at)
    return JobPlan((RecordEvent("Normal", EVENT, message),), status.compose_status(job, stand, (), here.seen.now))


def rollout_events(here: JobState) -> tuple[RecordEvent, ...]:
    """The same words each time: an Event tells them once."""
    limits = here.rollout.limits
    if limits is None:
        return ()
    bounds = f"at most {limits.unavailable} missing and {limits.surge} more than {here.instances} at once"
    text = f"the workers' template has changed ({here.digest}): instances are replaced, {bounds}"
    failed = _failed(here)
    stopped = (RecordEvent("Warning", "RollingUpdateStopped", failed),) if failed and not here.rollout.replace else ()
    return (RecordEvent("Normal", EVENT, text), *stopped)


def describe_rollout(here: JobState) -> str:
    """lastMessage while a template is rolled out; empty: none is."""
    found = here.rollout
    if found.limits is None and not (here.replaced.difference(here.moved) and here.is_running):
        return ""
    text = f"rolling update: {found.done} of {here.instances} instances are of the changed template"
    if found.replace:
        return text
    if failed := _failed(here):
        return f"{text}; stopped: {failed}"
    said = [
        here.seen.refusals[name].message
        for each in here.to_take
        if (name := here.partition(each)) in here.seen.refusals
    ]
    if said:
        return f"{text}; waits for room: {said[0]}"
    waits = waiting_reason.describe_pending_pods(here)
    return f"{text}; waits: {waits}" if waits else text


def _failed(here: JobState) -> str:
    """Of the changed template only: the others are on their way out anyway."""
    found = [pod for pod in _workers(here) if here.is_of_template(pod)]
    failed = pod_outcome.failed_pods(found)
    return pod_outcome.describe_failure(failed[0]) if failed else ""


def _workers(here: JobState) -> list[JobPod]:
    return [pod for instance in here.places for pod in here.there(instance)]

"""Reacts to a change of the workers' template, and reports it.

Without a launcher and with RollingUpdate, instances are replaced one after the other
(:mod:`muster_operator.plan.rollout`). Otherwise the whole job starts anew, as after a restart, but without counting as
one: with Recreate, or with a launcher. Admission allows a change of a launcher job's template only while it is
suspended, so in that case it was suspended and resumed while no operator ran. In both cases the status records a new
attempt first, so that partitions are reset.
"""

from dataclasses import replace

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import names, pod_outcome, status
from muster_operator.job.snapshot import JobPlan, JobPod, RecordEvent
from muster_operator.job.status import RESTARTING, StatusUpdate
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.plan import attempts, rollout, waiting_reason
from muster_operator.plan.job_state import JobState

EVENT = "RollingUpdate"


def begin_replacement(state: JobState) -> JobPlan | None:
    """None: nothing to replace, or the attempt for it has begun."""
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
    """``decided`` with the template that applies to pods without a label, while there are any.

    lastReconcileTime does not change: if the CRD lacks the field, the write has no effect and wakes nothing.
    """
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
    message = "the workers' template has changed: all pods are replaced"
    job = msgspec.structs.replace(state.job, status=_next_attempt(state))
    at = rfc3339_whole(state.snapshot.now)
    stand = StatusUpdate(RESTARTING, message, desired=state.instances, message=message, next_attempt=at)
    return JobPlan((RecordEvent("Normal", EVENT, message),), status.compose_status(job, stand, (), state.snapshot.now))


def rollout_events(state: JobState) -> tuple[RecordEvent, ...]:
    """The text is the same each time, so that it is recorded as one Event."""
    limits = state.rollout.limits
    if limits is None:
        return ()
    bounds = f"at most {limits.unavailable} missing and {limits.surge} above {state.instances} at a time"
    text = f"the workers' template has changed ({state.digest}): replacing instances, {bounds}"
    failed = _describe_failure(state)
    stopped = (RecordEvent("Warning", "RollingUpdateStopped", failed),) if failed and not state.rollout.replace else ()
    return (RecordEvent("Normal", EVENT, text), *stopped)


def describe_rollout(state: JobState) -> str:
    """lastMessage during a rollout; empty if there is none."""
    found = state.rollout
    replaced = state.replaced_instances.difference(
        attempts.moved_instances(state.job.status), state.restarting_instances
    )
    if found.limits is None and not (replaced and state.is_running):
        return ""
    text = f"rolling update: {found.done} of {state.instances} instances have the new template"
    if found.replace:
        return text
    if failed := _describe_failure(state):
        return f"{text}; stopped: {failed}"
    refused = [
        state.snapshot.refusals[name].message
        for each in state.instances_to_take
        if (name := state.partition(each)) in state.snapshot.refusals
    ]
    if refused:
        return f"{text}; waiting for room: {refused[0]}"
    waits = waiting_reason.describe_pending_pods(state)
    return f"{text}; waiting: {waits}" if waits else text


def _describe_failure(state: JobState) -> str:
    """Only pods of the new template count: the others are going anyway."""
    found = [pod for pod in _workers(state) if state.is_of_template(pod)]
    failed = pod_outcome.failed_pods(found)
    return pod_outcome.describe_failure(failed[0]) if failed else ""


def _workers(state: JobState) -> list[JobPod]:
    return [pod for instance in state.active_instances for pod in state.present_workers(instance)]

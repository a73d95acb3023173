"""Restarts single instances of a job without launcher, while others continue.

An instance that has ended runs again by restartPolicy, as a replica of a service does; it does not wait for the others.
The status records the restart first: the instance is an attempt ahead then, so its pods are deleted, its partition is
reset once, and new pods follow. If no instance continues, the attempt of the whole job has ended
(:mod:`muster_operator.plan.attempt_end`). Each such restart counts towards ``backOffLimit``.

As with a kubelet's containers, the first restart is immediate; each further one waits twice as long, until the instance
has run for ten minutes.
"""

from collections.abc import Iterator

import msgspec

from muster_kube.api import times
from muster_operator.job import pod_outcome
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import Action, JobPlan, RecordEvent
from muster_operator.job.status_types import InstanceRestart, IPUJobStatus
from muster_operator.plan import attempts, restart_policy
from muster_operator.plan.hardware import full_reset, poplar_recovery
from muster_operator.plan.job_state import JobState
from muster_operator.plan.restart_policy import RestartDecision

EVENT = "InstanceRestarting"
# "Once a container has executed for 10 minutes without any problems, the kubelet resets the restart backoff timer"
# (Kubernetes, Pod Lifecycle)
STABLE_S = 600.0


def restart_instances(state: JobState) -> JobPlan | None:
    """The status to write before any other action; None: no instance restarts now."""
    job, status = state.job, state.job.status
    events: list[Action] = []
    messages: list[str] = []
    for instance, end in _ended_instances(state):
        if not restart_policy.decide_restart(msgspec.structs.replace(job, status=status), end).again:
            continue
        restart = _next_restart(state, instance)
        cause = end.why or "it succeeded, and restartPolicy is Always"
        number = f"restart {status.restart_count + 1} of {restart_policy.policy_of(job).back_off_limit}"
        text = pod_outcome.shorten(f"instance {instance} restarts at {restart.start_time} ({number}): {cause}")
        messages.append(text)
        events += [RecordEvent("Warning", EVENT, text), *poplar_recovery.report_full_reset(state, end.pods)]
        status = _record(full_reset.suspect_nodes(state, end.pods, status), instance, restart)
    if not messages:
        return None
    at = times.rfc3339_whole(state.snapshot.now)
    return JobPlan(tuple(events), msgspec.structs.replace(status, last_message=messages[0], last_reconcile_time=at))


def final_failures(state: JobState) -> dict[int, tuple[AttemptEnd, RestartDecision]]:
    """Instances that have failed and do not restart, while others continue."""
    found = {
        instance: (end, restart_policy.decide_restart(state.job, end)) for instance, end in _ended_instances(state)
    }
    return {number: each for number, each in found.items() if not each[0].success and not each[1].again}


def report_failures(state: JobState) -> tuple[RecordEvent, ...]:
    """Events for them; none where no restart was ever due."""
    return tuple(
        RecordEvent("Warning", decision.reason, pod_outcome.shorten(f"{end.why}; {decision.note}"))
        for end, decision in final_failures(state).values()
        if decision.reason
    )


def next_start_s(state: JobState) -> float | None:
    """Seconds until the first of the delayed instances begins again."""
    return min(state.restart_delays_s.values(), default=None)


def _ended_instances(state: JobState) -> Iterator[tuple[int, AttemptEnd]]:
    """Ended instances of a job that continues. Those that are replaced or lost start anew anyway."""
    if state.with_launcher or state.end is not None:
        return
    for instance in range(state.instances):
        if instance in state.rollout.replace or state.is_lost(instance):
            continue
        if (end := state.end_of(instance)) is not None:
            yield instance, end


def _next_restart(state: JobState, instance: int) -> InstanceRestart:
    now, former = state.snapshot.now, attempts.last_restart(state.job.status, instance)
    is_stable = not 0 <= now - times.seconds(former.start_time) < STABLE_S
    in_a_row = 1 if is_stable else former.in_a_row + 1
    return InstanceRestart(
        count=former.count + 1,
        attempt=state.attempt_of(instance) + 1,
        start_time=restart_policy.instance_start_time(in_a_row, now, state.setup),
        in_a_row=in_a_row,
    )


def _record(status: IPUJobStatus, instance: int, restart: InstanceRestart) -> IPUJobStatus:
    return msgspec.structs.replace(
        status,
        restart_count=status.restart_count + 1,
        instance_restarts={**status.instance_restarts, str(instance): restart},
    )

"""Starts a job and keeps it running: its partitions, small objects and pods, and the removal of superfluous ones.

Each step waits for the one before it: partitions (behaviours 29, 31), the ConfigMap and the launcher's rights (17, 19),
workers (20, 28), then the launcher, once all workers exist (21) and, with pre-flight checks, no node has failed them.

Every plan requests again what was refused; the executor remembers when to retry. If the names that a launcher job needs
are taken, it creates only those objects, which shows whether they are still taken. Events may be recorded again,
because their text is the same each time.
"""

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import lost_pods, pod_outcome, status, timers
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    FreePartition,
    JobPlan,
    PatchObject,
    RecordEvent,
    TakePartitions,
)
from muster_operator.job.status import PENDING, RESTARTING, RUNNING, SUSPENDED, StatusUpdate
from muster_operator.job.types import IPUJob, ipus_per_instance
from muster_operator.plan import gang_hold, instance_restart, move, restart_policy, template_change, waiting_reason
from muster_operator.plan.hardware import degradation, preflight
from muster_operator.plan.job_state import JobState
from muster_operator.resources import access, config, pods
from muster_operator.resources.ownership import CONTENT, Body


def wait_for_attempt(state: JobState) -> JobPlan | None:
    """Running pods are deleted at once. Ended pods can be inspected until the next attempt begins, which needs their
    names."""
    job, now = state.job, state.snapshot.now
    rest_s = restart_policy.delay_left_s(job, now, state.setup)
    if not (state.old_pods or rest_s):
        return None
    doomed = [pod for pod in state.superfluous_pods if not (rest_s and pod_outcome.has_ended(pod))]
    known = next((each for each in job.status.conditions if each.type == RESTARTING and each.status == "True"), None)
    message = known.message if known is not None else "waiting for pods of an earlier attempt to be deleted"
    update = StatusUpdate(
        RESTARTING,
        message,
        desired=state.instances,
        message=message,
        reason=known.reason if known is not None else "",
        next_attempt=job.status.next_attempt_time,
    )
    moves = known is not None and known.reason == degradation.MOVING  # a move has its own Event
    events: tuple[Action, ...] = ()
    if known is not None and not moves:
        events = (RecordEvent("Warning", "IPUJobRestarting", message),)
    return JobPlan(
        (*move.delete_pods(state, doomed), *_free_surplus(state), *events, *_session_warning(state)),
        status.compose_status(job, update, (), now),
        again_s=timers.next_s(
            now,
            now + rest_s,
            now + (_next_s(state) or 0.0),
            *lost_pods.force_delete_times(state.old_pods, state.snapshot),
        ),
    )


def start_and_keep_running(state: JobState) -> JobPlan:
    """Delete superfluous pods, request missing partitions, and create the objects that can be created now."""
    job, snapshot = state.job, state.snapshot
    # what has failed can be inspected until its instance begins again
    doomed = [
        pod
        for pod in state.superfluous_pods
        if not pod_outcome.has_ended(pod) or degradation.instance_of(pod) not in state.restart_delays_s
    ]
    deletions: tuple[Action, ...] = (*move.delete_pods(state, doomed), *_free_surplus(state))
    creations: tuple[Action, ...] = () if state.misfit_partitions else _create_missing(state)
    obstacle = waiting_reason.find_obstacle(state)
    taking: tuple[Action, ...] = ()
    if state.instances_to_take and not state.misfit_partitions and not (obstacle and obstacle.blocks):
        taking = _take_partitions(state)
    held = gang_hold.describe_hold(state)
    update = StatusUpdate(
        RUNNING if state.is_running else PENDING,
        held
        or template_change.describe_rollout(state)
        or preflight.describe_checks(state)
        or waiting_reason.describe_wait(state, obstacle),
        desired=state.instances,
        current=len(state.complete_instances),
        partitions=bool(state.instances) and not state.unready_instances,
        reason="GaveBack" if held and not state.is_running else "",
        message=held if not state.is_running else "",
        started=gang_hold.is_back_off_over(state),
    )
    written = status.compose_status(job, update, state.workers, snapshot.now)
    events: list[Action] = [*template_change.rollout_events(state), *instance_restart.report_failures(state)]
    if status.has_condition(job.status, SUSPENDED):
        events.append(RecordEvent("Normal", "IPUJobResumed", "its partitions and pods are created again"))
    if obstacle is not None and obstacle.event:
        events.append(RecordEvent("Warning", obstacle.event, pod_outcome.shorten(obstacle.text)))
    checks = preflight.request_checks(state)
    again_s = timers.next_s(
        snapshot.now,
        snapshot.now + (_next_s(state) or 0.0),
        snapshot.now + (instance_restart.next_start_s(state) or 0.0),
        gang_hold.next_change_at(state),
        preflight.next_change_at(state),
        *lost_pods.force_delete_times(state.superfluous_pods, snapshot),
    )
    return JobPlan(
        (*deletions, *creations, *taking, *checks, *events, *_session_warning(state)),
        written,
        again_s=again_s,
        waits_for_room=bool(state.unready_instances or state.instances_to_take),
    )


def small_objects(job: IPUJob) -> list[Body]:
    """In the order of their creation."""
    return [config.config_map(job), access.service_account(job), access.role(job), access.role_binding(job)]


def _take_partitions(state: JobState) -> tuple[Action, ...]:
    """All partitions of a launcher job belong to one attempt, so they are requested together."""
    by_attempt: dict[int, list[int]] = {}
    for instance in state.instances_to_take:
        by_attempt.setdefault(state.attempt_of(instance), []).append(instance)
    return tuple(
        TakePartitions(
            tuple(those),
            attempt=attempt,
            size=ipus_per_instance(state.job.spec),
            gcds=state.workers_each,
            together=state.with_launcher,
        )
        for attempt, those in sorted(by_attempt.items())
    )


def _free_surplus(state: JobState) -> tuple[Action, ...]:
    return tuple(FreePartition(name) for name in state.surplus_partitions)


def _create_missing(state: JobState) -> tuple[Action, ...]:
    """Create what is missing and possible now (behaviours 17, 19, 20, 21, 26, 28)."""
    if not state.ready_instances:
        return ()
    found: list[Action] = []
    avoid = preflight.avoided_nodes(state.job, state.snapshot.now)
    if state.with_launcher:
        for body in small_objects(state.job):
            kind, name = body["kind"], body["metadata"]["name"]
            there = state.snapshot.objects.get((kind, name))
            if there is None:
                found.append(CreateObject(kind, name, body))
            elif there.metadata.annotations.get(CONTENT) != body["metadata"]["annotations"][CONTENT]:
                found.append(PatchObject(kind, name, body))
    for instance in state.ready_instances:
        entry = state.entry(instance)
        if entry is None or state.conflict(instance) or state.is_mixed(instance):
            continue
        for index, name in state.workers_of(instance).items():
            if name not in state.pods:
                body = pods.build_worker(state.job, index, entry, entry.attempt, state.setup, avoid=avoid)
                found.append(CreateObject("Pod", name, body))
    complete = state.instances and len(state.complete_instances) == state.instances and not found
    if state.with_launcher and complete and state.launcher_name not in state.pods and not preflight.is_open(state):
        entries = [entry for instance in state.ready_instances if (entry := state.entry(instance)) is not None]
        body = pods.build_launcher(state.job, entries, state.attempt, state.setup, avoid=avoid)
        found.append(CreateObject("Pod", state.launcher_name, body))
    if state.with_launcher and (taken := waiting_reason.taken_names(state)):
        # half a job would only hold what others could use
        return tuple(each for each in found if isinstance(each, CreateObject) and (each.kind, each.name) in taken)
    return tuple(found)


def _session_warning(state: JobState) -> tuple[Action, ...]:
    """A warning for the users of a session before its end."""
    warning, end = timers.session_warning(state.job), timers.session_end(state.job)
    if warning is None or end is None or state.snapshot.now < warning:
        return ()
    text = f"this session ends at {rfc3339_whole(end)}: its pods are then deleted and its partitions released"
    return (RecordEvent("Warning", "SessionEnds", text),)


def _next_s(state: JobState) -> float | None:
    job = state.job
    moments = timers.deadline(job), timers.session_warning(job), timers.session_end(job)
    return timers.next_s(state.snapshot.now, *moments)

"""What is to be done about one job now: a value from values. Doing it again changes nothing.

In this order, each step only once what came before it is there: the finaliser (behaviour 16), partitions (29, 31), the
ConfigMap and the launcher's rights (17, 19), workers (20, 28), and the launcher when all of its workers were made (21)
and, where the job has pre-flight checks, no node of theirs has failed them.
A restart is a new attempt, in the status before anything else: from then on pods of the attempt before it only go, and
what is made, partitions reset first, is of the new one (42). So is a change of template; without a launcher its pods go
instance by instance (51).

What was refused is asked for again by every plan: whoever carries it out remembers when it is time to. Of a launcher
job that finds names of its own taken nothing is made but those, which settles whether they still are. Events (the Tell
actions) may be told again: they say the same each time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
from msgspec import UnsetType

from muster_kube.api.times import rfc3339_whole
from muster_operator.admission.kueue import QUEUE
from muster_operator.job import lost_pods, names, pod_outcome, status, timers
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import (
    Action,
    AddFinalizer,
    CreateObject,
    DeleteJob,
    DeletePod,
    FreePartition,
    JobPlan,
    JobPod,
    JobSetup,
    PatchObject,
    RecordEvent,
    RemoveFinalizer,
    Snapshot,
    TakePartitions,
    WithdrawRequests,
)
from muster_operator.job.status import COMPLETE, FAILED, PENDING, RESTARTING, RUNNING, SUSPENDED, StatusUpdate
from muster_operator.job.types import FINALIZER, IPUJob, instances, ipus_per_instance
from muster_operator.plan import (
    degradation,
    full_reset,
    gang_hold,
    move,
    poplar_recovery,
    preflight,
    restart,
    template_change,
    waiting_reason,
)
from muster_operator.plan.job_state import JobState, own_entries, own_pods
from muster_operator.resources import access, config, pods
from muster_operator.resources.ownership import CONTENT, Body


def plan(job: IPUJob, seen: Snapshot, setup: JobSetup) -> JobPlan:
    """Of a job whose spec admission lets through, defaults filled in."""
    decided = _planned(job, seen, setup)
    if not (
        job.metadata.deletion_timestamp or FINALIZER not in job.metadata.finalizers or status.is_finished(job.status)
    ):
        here = JobState(job, seen)
        decided = template_change.adopt_template(here, move.report_hardware(here, setup, decided))
    return _with_requests(job, seen, decided)


def _with_requests(job: IPUJob, seen: Snapshot, decided: JobPlan) -> JobPlan:
    """What is asked of agents whatever else is done; and what nobody waits for any more is withdrawn, as it would keep
    its place among the few requests that a node has."""
    kept = preflight.request_ids(job) | full_reset.request_ids(job, seen.now)
    before: tuple[Action, ...] = tuple(
        WithdrawRequests(node, kept) for node, asked in sorted((seen.asked or {}).items()) if set(asked) - kept
    )
    rests = [each for each in (decided.again_s, full_reset.time_left_s(job, seen.now)) if each is not None]
    actions = (*before, *full_reset.request_checks(job, seen), *decided.actions, *full_reset.report_answers(job, seen))
    return replace(decided, actions=actions, again_s=min(rests, default=None))


def _planned(job: IPUJob, seen: Snapshot, setup: JobSetup) -> JobPlan:
    if job.metadata.deletion_timestamp:
        return _delete(job, seen) if FINALIZER in job.metadata.finalizers else JobPlan()
    if FINALIZER not in job.metadata.finalizers:
        return JobPlan((AddFinalizer(),))
    if status.is_finished(job.status):
        return _clean_up(job, seen, setup)
    if job.spec.suspend or _is_being_suspended(job, seen):
        return _suspend(job, seen)
    return _pursue(JobState(job, seen), setup)


def _delete(job: IPUJob, seen: Snapshot) -> JobPlan:
    """Pods, then partitions, then the finaliser (behaviours 34, 35); Kubernetes collects the rest by its owner."""
    if found := own_pods(job, seen):
        return JobPlan(_removed(found.values(), seen), again_s=_next_forced_s(found.values(), seen))
    entries = own_entries(job, seen)
    if not entries:
        return JobPlan((RemoveFinalizer(),))
    line = waiting_reason.describe_release_wait(entries, seen)
    return JobPlan(_freed(entries), status.compose_message(job, line, seen.now) if line else None)


def _clean_up(job: IPUJob, seen: Snapshot, setup: JobSetup) -> JobPlan:
    """A job that is over makes nothing again, whoever starts and whatever is deleted by hand (behaviours 37, 43).

    After a failure nothing of it runs on, whatever the policy: it would hold nodes and IPUs for nothing (57). What has
    ended stays by the policy, with its logs."""
    expiry = timers.expiry(job)
    if expiry is not None and seen.now >= expiry:
        return JobPlan((DeleteJob(),))
    found, entries = own_pods(job, seen), own_entries(job, seen)
    workers = [pod for pod in found.values() if pod.metadata.labels.get(names.ROLE) == names.WORKER]
    failed = status.has_condition(job.status, FAILED)
    everything = _is_all_cleaned(job, success=not failed)
    doomed = [
        pod
        for pod in found.values()
        if everything
        or (job.spec.clean_pod_policy == "Workers" and pod in workers)
        or ((failed or setup.free_partitions_at_end) and not pod_outcome.has_ended(pod))
    ]
    actions: tuple[Action, ...] = _removed(doomed, seen)
    frees = everything or setup.free_partitions_at_end
    if not doomed and frees and all(pod_outcome.has_ended(pod) for pod in found.values()):
        actions = _freed(entries)
    state = FAILED if failed else COMPLETE
    ended = next(each for each in job.status.conditions if each.type == state)
    stand = StatusUpdate(
        state,
        job.status.last_message,
        desired=job.status.desired_replicas,
        partitions=job.status.ipu_partition_created and bool(entries),
        reason=ended.reason,
        message=ended.message,
    )
    again_s = timers.next_s(seen.now, expiry, *lost_pods.force_delete_times(doomed, seen))
    return JobPlan(actions, status.compose_status(job, stand, workers, seen.now), again_s=again_s)


def _is_all_cleaned(job: IPUJob, *, success: bool) -> bool:
    """A session that is over leaves nothing to look at (behaviour 46)."""
    return job.spec.clean_pod_policy == "All" or (success and not isinstance(job.spec.interactive, UnsetType))


def _fate(job: IPUJob, setup: JobSetup, *, success: bool) -> str:
    """What becomes of the partitions of a job that has ended, for people."""
    if _is_all_cleaned(job, success=success) or setup.free_partitions_at_end:
        return "its partitions are freed"
    ttl_s = job.spec.ttl_seconds_after_finished
    when = "" if isinstance(ttl_s, UnsetType) else f", {ttl_s} s after its end"
    return f"its partitions stay until it is deleted{when}"


def _is_being_suspended(job: IPUJob, seen: Snapshot) -> bool:
    """Resumed before it had come to rest: what was made before may not be what is wanted now (behaviour 44)."""
    return status.has_condition(job.status, SUSPENDED) and bool(own_pods(job, seen) or own_entries(job, seen))


def _suspend(job: IPUJob, seen: Snapshot) -> JobPlan:
    """No pods, no partitions; the small objects may stay (behaviour 44)."""
    found = own_pods(job, seen)
    actions = _removed(found.values(), seen) if found else _freed(own_entries(job, seen))
    queue = job.metadata.labels.get(QUEUE)
    stand = StatusUpdate(
        SUSPENDED, f"suspended, of queue {queue}" if queue else "suspended", desired=instances(job.spec)
    )
    tells: tuple[Action, ...] = ()
    if not status.has_condition(job.status, SUSPENDED):
        tells = (RecordEvent("Normal", "IPUJobSuspended", "its pods are removed and its partitions freed"),)
    again_s = _next_forced_s(found.values(), seen)
    return JobPlan((*actions, *tells), status.compose_status(job, stand, (), seen.now), again_s=again_s)


def _pursue(here: JobState, setup: JobSetup) -> JobPlan:
    moved = move.decide_move(here, setup)
    if isinstance(moved, JobPlan):
        return moved
    if isinstance(moved, move.FailsByPolicy):
        return _ended(here, setup, AttemptEnd(False, moved.why), restart.RestartDecision(False, degradation.DEGRADED))
    over = _over(here, setup)
    if over is not None:
        return over
    if (decided := template_change.begin_replacement(here) or gang_hold.give_back_or_retry(here, setup)) is not None:
        return decided
    if here.old or restart.delay_left_s(here.job, here.seen.now, setup):
        return _between_attempts(here, setup)
    if (decided := preflight.check_nodes(here)) is not None:
        return decided
    job, seen = here.job, here.seen
    removals: tuple[Action, ...] = (*move.delete_pods(here, here.superfluous), *_surplus(here))
    making: tuple[Action, ...] = () if here.misfits else _making(here, setup)
    obstacle = waiting_reason.find_obstacle(here, setup)
    taking: tuple[Action, ...] = ()
    if here.to_take and not here.misfits and not (obstacle and obstacle.blocks):
        taking = _taking(here)
    held = gang_hold.describe_hold(here)
    stand = StatusUpdate(
        RUNNING if here.is_running else PENDING,
        held
        or template_change.describe_rollout(here)
        or preflight.describe_checks(here)
        or waiting_reason.describe_wait(here, obstacle),
        desired=here.instances,
        current=len(here.made),
        partitions=bool(here.instances) and not here.unready,
        reason="GaveBack" if held and not here.is_running else "",
        message=held if not here.is_running else "",
        started=gang_hold.is_back_off_over(here),
    )
    written = status.compose_status(job, stand, here.workers, seen.now)
    tells: list[Action] = [*template_change.rollout_events(here)]
    if status.has_condition(job.status, SUSPENDED):
        tells.append(RecordEvent("Normal", "IPUJobResumed", "its partitions and pods are made again"))
    if obstacle is not None and obstacle.event:
        tells.append(RecordEvent("Warning", obstacle.event, pod_outcome.shorten(obstacle.text)))
    actions = (*removals, *making, *taking, *preflight.request_checks(here), *tells, *_warned(here))
    again_s = timers.next_s(
        seen.now,
        seen.now + (_next_s(here) or 0.0),
        gang_hold.next_change_at(here, setup),
        preflight.next_change_at(here),
        *lost_pods.force_delete_times(here.superfluous, seen),
    )
    return JobPlan(actions, written, again_s=again_s, waits_for_room=bool(here.unready or here.to_take))


def _taking(here: JobState) -> tuple[Action, ...]:
    """A launcher's partitions are all of one attempt, and so asked for at once."""
    by_attempt: dict[int, list[int]] = {}
    for instance in here.to_take:
        by_attempt.setdefault(here.attempt_of(instance), []).append(instance)
    return tuple(
        TakePartitions(
            tuple(those),
            attempt=attempt,
            size=ipus_per_instance(here.job.spec),
            gcds=here.workers_each,
            together=here.with_launcher,
        )
        for attempt, those in sorted(by_attempt.items())
    )


def _between_attempts(here: JobState, setup: JobSetup) -> JobPlan:
    """What still runs goes at once; what has ended may be read until the next attempt begins, which needs its names."""
    job, now = here.job, here.seen.now
    rest_s = restart.delay_left_s(job, now, setup)
    doomed = [pod for pod in here.superfluous if not (rest_s and pod_outcome.has_ended(pod))]
    said = next((each for each in job.status.conditions if each.type == RESTARTING and each.status == "True"), None)
    message = said.message if said is not None else "its pods of an earlier attempt go first"
    stand = StatusUpdate(
        RESTARTING,
        message,
        desired=here.instances,
        message=message,
        reason=said.reason if said is not None else "",
        next_attempt=job.status.next_attempt_time,
    )
    moves = said is not None and said.reason == degradation.MOVING  # which has been told
    tells: tuple[Action, ...] = () if said is None or moves else (RecordEvent("Warning", "IPUJobRestarting", message),)
    return JobPlan(
        (*move.delete_pods(here, doomed), *_surplus(here), *tells, *_warned(here)),
        status.compose_status(job, stand, (), now),
        again_s=timers.next_s(
            now, now + rest_s, now + (_next_s(here) or 0.0), *lost_pods.force_delete_times(here.old, here.seen)
        ),
    )


def _over(here: JobState, setup: JobSetup) -> JobPlan | None:
    """The end of an attempt or of the job; None: it goes on. What a job came to by itself is truer than that its time
    was over when somebody looked."""
    job, now, end = here.job, here.seen.now, here.end
    verdict = restart.decide_restart(job, end) if end is not None else restart.RestartDecision(False)
    if end is not None and not verdict.again:
        return _ended(here, setup, end, verdict)
    session_end, deadline = timers.session_end(job), timers.deadline(job)
    if session_end is not None and now >= session_end:
        return _ended(here, setup, AttemptEnd(True), restart.RestartDecision(False, "SessionEnded"))
    if deadline is not None and now >= deadline:
        why = f"it has not ended within its activeDeadlineSeconds ({job.spec.active_deadline_seconds})"
        late = AttemptEnd(False, f"{why}; {end.why}" if end is not None and end.why else why)
        return _ended(here, setup, late, restart.RestartDecision(False, "DeadlineExceeded"))
    return _restart(here, setup, end) if end is not None else None


def _restart(here: JobState, setup: JobSetup, end: AttemptEnd) -> JobPlan:
    """The new attempt is in the status before anything is done about it: it is counted once, whoever goes on."""
    job, now, before = here.job, here.seen.now, here.job.status
    at = restart.next_attempt_time(job, end, now, setup)
    message = restart.describe_restart(job, end, at)
    anew = msgspec.structs.replace(before, attempt=before.attempt + 1, restart_count=before.restart_count + 1)
    stand = StatusUpdate(RESTARTING, message, desired=here.instances, message=message, next_attempt=at)
    tell = RecordEvent("Warning", "IPUJobRestarting", message)
    tells = (tell, *poplar_recovery.report_full_reset(here, end.pods))
    anew = full_reset.suspect_nodes(here, end.pods, anew)
    return JobPlan(tells, status.compose_status(msgspec.structs.replace(job, status=anew), stand, (), now))


def _ended(here: JobState, setup: JobSetup, end: AttemptEnd, verdict: restart.RestartDecision) -> JobPlan:
    """Said first, and alone: what is cleaned away afterwards could no longer say how it ended."""
    job, partitions = here.job, not here.unready
    fate = _fate(job, setup, success=end.success)
    if end.success:
        what = "is over: its ttl has passed" if verdict.reason == "SessionEnded" else "has completed"
        message = f"IPUJob {job.metadata.namespace}/{job.metadata.name} {what}; {fate}."
        stand = StatusUpdate(COMPLETE, status.DONE, here.instances, 0, partitions, verdict.reason, message)
        return JobPlan((), status.compose_status(job, stand, here.workers, here.seen.now))
    why = pod_outcome.shorten(end.why, pod_outcome.LIMIT - 200)
    why = f"{why}; {verdict.note}" if verdict.note else why
    stand = StatusUpdate(FAILED, why, here.instances, 0, partitions, verdict.reason, f"{why}; {fate}")
    tell = RecordEvent("Warning", verdict.reason or "IPUJobFailed", why)
    known = msgspec.structs.replace(job, status=full_reset.suspect_nodes(here, end.pods, job.status))
    return JobPlan(
        (tell, *poplar_recovery.report_full_reset(here, end.pods)),
        status.compose_status(known, stand, here.workers, here.seen.now),
    )


def _warned(here: JobState) -> tuple[Action, ...]:
    """The people of a session, some time before its end."""
    warning, end = timers.session_warning(here.job), timers.session_end(here.job)
    if warning is None or end is None or here.seen.now < warning:
        return ()
    text = f"this session ends at {rfc3339_whole(end)}: its pods are removed and its partitions freed"
    return (RecordEvent("Warning", "SessionEnds", text),)


def _next_s(here: JobState) -> float | None:
    job = here.job
    return timers.next_s(here.seen.now, timers.deadline(job), timers.session_warning(job), timers.session_end(job))


def _surplus(here: JobState) -> tuple[Action, ...]:
    return tuple(FreePartition(name) for name in here.surplus)


def _making(here: JobState, setup: JobSetup) -> tuple[Action, ...]:
    """What is missing and can be made now (behaviours 17, 19, 20, 21, 26, 28)."""
    if not here.ready:
        return ()
    found: list[Action] = []
    avoid = preflight.avoided_nodes(here.job, here.seen.now)
    if here.with_launcher:
        for body in small_objects(here.job):
            kind, name = body["kind"], body["metadata"]["name"]
            there = here.seen.objects.get((kind, name))
            if there is None:
                found.append(CreateObject(kind, name, body))
            elif there.metadata.annotations.get(CONTENT) != body["metadata"]["annotations"][CONTENT]:
                found.append(PatchObject(kind, name, body))
    for instance in here.ready:
        entry = here.entry(instance)
        if entry is None or here.conflict(instance) or here.is_mixed(instance):
            continue
        for index, name in here.workers_of(instance).items():
            if name not in here.pods:
                body = pods.build_worker(here.job, index, entry, entry.attempt, setup, avoid=avoid)
                found.append(CreateObject("Pod", name, body))
    complete = here.instances and len(here.made) == here.instances and not found
    if here.with_launcher and complete and here.launcher_name not in here.pods and not preflight.is_open(here):
        entries = [entry for instance in here.ready if (entry := here.entry(instance)) is not None]
        body = pods.build_launcher(here.job, entries, here.attempt, setup, avoid=avoid)
        found.append(CreateObject("Pod", here.launcher_name, body))
    if here.with_launcher and (taken := waiting_reason.taken_names(here)):
        # half a job would only hold what others could use
        return tuple(each for each in found if isinstance(each, CreateObject) and (each.kind, each.name) in taken)
    return tuple(found)


def small_objects(job: IPUJob) -> list[Body]:
    """In the order in which they are made."""
    return [config.config_map(job), access.service_account(job), access.role(job), access.role_binding(job)]


def _removed(found: Iterable[JobPod], seen: Snapshot) -> tuple[DeletePod, ...]:
    """Of a job that wants none of them any more; by force what is lost with its node."""
    actions = []
    for pod in found:
        forced_at = lost_pods.force_delete_at(pod, seen)
        if forced_at is not None and seen.now >= forced_at:
            actions.append(DeletePod(pod.metadata.name, pod.metadata.uid, 0))
        elif not pod.metadata.deletion_timestamp:
            actions.append(DeletePod(pod.metadata.name, pod.metadata.uid))
    return tuple(actions)


def _next_forced_s(found: Iterable[JobPod], seen: Snapshot) -> float | None:
    return timers.next_s(seen.now, *lost_pods.force_delete_times(found, seen))


def _freed(entries: Mapping[str, PartitionEntry]) -> tuple[FreePartition, ...]:
    return tuple(FreePartition(name) for name, entry in sorted(entries.items()) if entry.state != "deleting")

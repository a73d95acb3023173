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
from muster_operator.job.partition_api import Entry
from muster_operator.job.pod_outcome import End
from muster_operator.job.snapshot import (
    Action,
    AddFinalizer,
    Change,
    DeleteJob,
    DropFinalizer,
    FreePartition,
    JobPod,
    Make,
    Plan,
    RemovePod,
    Seen,
    Setup,
    TakePartitions,
    Tell,
    WithdrawRequests,
)
from muster_operator.job.status import COMPLETE, FAILED, PENDING, RESTARTING, RUNNING, SUSPENDED, Stand
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
from muster_operator.plan.job_state import Standing, own_entries, own_pods
from muster_operator.resources import access, config, pods
from muster_operator.resources.ownership import CONTENT, Body


def plan(job: IPUJob, seen: Seen, setup: Setup) -> Plan:
    """Of a job whose spec admission lets through, defaults filled in."""
    decided = _planned(job, seen, setup)
    if not (job.metadata.deletion_timestamp or FINALIZER not in job.metadata.finalizers or status.finished(job.status)):
        here = Standing(job, seen)
        decided = template_change.with_adopted(here, move.with_health(here, setup, decided))
    return _with_requests(job, seen, decided)


def _with_requests(job: IPUJob, seen: Seen, decided: Plan) -> Plan:
    """What is asked of agents whatever else is done; and what nobody waits for any more is withdrawn, as it would keep
    its place among the few requests that a node has."""
    kept = preflight.kept(job) | full_reset.kept(job, seen.now)
    before: tuple[Action, ...] = tuple(
        WithdrawRequests(node, kept) for node, asked in sorted((seen.asked or {}).items()) if set(asked) - kept
    )
    rests = [each for each in (decided.again_s, full_reset.rest_s(job, seen.now)) if each is not None]
    actions = (*before, *full_reset.asking(job, seen), *decided.actions, *full_reset.told(job, seen))
    return replace(decided, actions=actions, again_s=min(rests, default=None))


def _planned(job: IPUJob, seen: Seen, setup: Setup) -> Plan:
    if job.metadata.deletion_timestamp:
        return _delete(job, seen) if FINALIZER in job.metadata.finalizers else Plan()
    if FINALIZER not in job.metadata.finalizers:
        return Plan((AddFinalizer(),))
    if status.finished(job.status):
        return _clean_up(job, seen, setup)
    if job.spec.suspend or _is_being_suspended(job, seen):
        return _suspend(job, seen)
    return _pursue(Standing(job, seen), setup)


def _delete(job: IPUJob, seen: Seen) -> Plan:
    """Pods, then partitions, then the finaliser (behaviours 34, 35); Kubernetes collects the rest by its owner."""
    if found := own_pods(job, seen):
        return Plan(_removed(found.values(), seen), again_s=_next_forced_s(found.values(), seen))
    entries = own_entries(job, seen)
    if not entries:
        return Plan((DropFinalizer(),))
    line = waiting_reason.for_release(entries, seen)
    return Plan(_freed(entries), status.line_only(job, line, seen.now) if line else None)


def _clean_up(job: IPUJob, seen: Seen, setup: Setup) -> Plan:
    """A job that is over makes nothing again, whoever starts and whatever is deleted by hand (behaviours 37, 43).

    After a failure nothing of it runs on, whatever the policy: it would hold nodes and IPUs for nothing (57). What has
    ended stays by the policy, with its logs."""
    expiry = timers.expiry(job)
    if expiry is not None and seen.now >= expiry:
        return Plan((DeleteJob(),))
    found, entries = own_pods(job, seen), own_entries(job, seen)
    workers = [pod for pod in found.values() if pod.metadata.labels.get(names.ROLE) == names.WORKER]
    failed = status.is_true(job.status, FAILED)
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
    stand = Stand(
        state,
        job.status.last_message,
        desired=job.status.desired_replicas,
        partitions=job.status.ipu_partition_created and bool(entries),
        reason=ended.reason,
        message=ended.message,
    )
    again_s = timers.next_s(seen.now, expiry, *lost_pods.next_forced(doomed, seen))
    return Plan(actions, status.told(job, stand, workers, seen.now), again_s=again_s)


def _is_all_cleaned(job: IPUJob, *, success: bool) -> bool:
    """A session that is over leaves nothing to look at (behaviour 46)."""
    return job.spec.clean_pod_policy == "All" or (success and not isinstance(job.spec.interactive, UnsetType))


def _fate(job: IPUJob, setup: Setup, *, success: bool) -> str:
    """What becomes of the partitions of a job that has ended, for people."""
    if _is_all_cleaned(job, success=success) or setup.free_partitions_at_end:
        return "its partitions are freed"
    ttl_s = job.spec.ttl_seconds_after_finished
    when = "" if isinstance(ttl_s, UnsetType) else f", {ttl_s} s after its end"
    return f"its partitions stay until it is deleted{when}"


def _is_being_suspended(job: IPUJob, seen: Seen) -> bool:
    """Resumed before it had come to rest: what was made before may not be what is wanted now (behaviour 44)."""
    return status.is_true(job.status, SUSPENDED) and bool(own_pods(job, seen) or own_entries(job, seen))


def _suspend(job: IPUJob, seen: Seen) -> Plan:
    """No pods, no partitions; the small objects may stay (behaviour 44)."""
    found = own_pods(job, seen)
    actions = _removed(found.values(), seen) if found else _freed(own_entries(job, seen))
    queue = job.metadata.labels.get(QUEUE)
    stand = Stand(SUSPENDED, f"suspended, of queue {queue}" if queue else "suspended", desired=instances(job.spec))
    tells: tuple[Action, ...] = ()
    if not status.is_true(job.status, SUSPENDED):
        tells = (Tell("Normal", "IPUJobSuspended", "its pods are removed and its partitions freed"),)
    again_s = _next_forced_s(found.values(), seen)
    return Plan((*actions, *tells), status.told(job, stand, (), seen.now), again_s=again_s)


def _pursue(here: Standing, setup: Setup) -> Plan:
    moved = move.decide(here, setup)
    if isinstance(moved, Plan):
        return moved
    if isinstance(moved, move.Fails):
        return _ended(here, setup, End(False, moved.why), restart.Verdict(False, degradation.DEGRADED))
    over = _over(here, setup)
    if over is not None:
        return over
    if (decided := template_change.begun(here) or gang_hold.step(here, setup)) is not None:
        return decided
    if here.old or restart.rest_s(here.job, here.seen.now, setup):
        return _between_attempts(here, setup)
    if (decided := preflight.step(here)) is not None:
        return decided
    job, seen = here.job, here.seen
    removals: tuple[Action, ...] = (*move.removed(here, here.superfluous), *_surplus(here))
    making: tuple[Action, ...] = () if here.misfits else _making(here, setup)
    obstacle = waiting_reason.obstacle(here, setup)
    taking: tuple[Action, ...] = ()
    if here.to_take and not here.misfits and not (obstacle and obstacle.blocks):
        taking = _taking(here)
    held = gang_hold.message(here)
    stand = Stand(
        RUNNING if here.is_running else PENDING,
        held or template_change.line(here) or preflight.line(here) or waiting_reason.line(here, obstacle),
        desired=here.instances,
        current=len(here.made),
        partitions=bool(here.instances) and not here.unready,
        reason="GaveBack" if held and not here.is_running else "",
        message=held if not here.is_running else "",
        started=gang_hold.is_forgotten(here),
    )
    written = status.told(job, stand, here.workers, seen.now)
    tells: list[Action] = [*template_change.tells(here)]
    if status.is_true(job.status, SUSPENDED):
        tells.append(Tell("Normal", "IPUJobResumed", "its partitions and pods are made again"))
    if obstacle is not None and obstacle.event:
        tells.append(Tell("Warning", obstacle.event, pod_outcome.bounded(obstacle.text)))
    actions = (*removals, *making, *taking, *preflight.asking(here), *tells, *_warned(here))
    again_s = timers.next_s(
        seen.now,
        seen.now + (_next_s(here) or 0.0),
        gang_hold.moment(here, setup),
        preflight.until(here),
        *lost_pods.next_forced(here.superfluous, seen),
    )
    return Plan(actions, written, again_s=again_s, waits_for_room=bool(here.unready or here.to_take))


def _taking(here: Standing) -> tuple[Action, ...]:
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


def _between_attempts(here: Standing, setup: Setup) -> Plan:
    """What still runs goes at once; what has ended may be read until the next attempt begins, which needs its names."""
    job, now = here.job, here.seen.now
    rest_s = restart.rest_s(job, now, setup)
    doomed = [pod for pod in here.superfluous if not (rest_s and pod_outcome.has_ended(pod))]
    said = next((each for each in job.status.conditions if each.type == RESTARTING and each.status == "True"), None)
    message = said.message if said is not None else "its pods of an earlier attempt go first"
    stand = Stand(
        RESTARTING,
        message,
        desired=here.instances,
        message=message,
        reason=said.reason if said is not None else "",
        next_attempt=job.status.next_attempt_time,
    )
    moves = said is not None and said.reason == degradation.MOVING  # which has been told
    tells: tuple[Action, ...] = () if said is None or moves else (Tell("Warning", "IPUJobRestarting", message),)
    return Plan(
        (*move.removed(here, doomed), *_surplus(here), *tells, *_warned(here)),
        status.told(job, stand, (), now),
        again_s=timers.next_s(
            now, now + rest_s, now + (_next_s(here) or 0.0), *lost_pods.next_forced(here.old, here.seen)
        ),
    )


def _over(here: Standing, setup: Setup) -> Plan | None:
    """The end of an attempt or of the job; None: it goes on. What a job came to by itself is truer than that its time
    was over when somebody looked."""
    job, now, end = here.job, here.seen.now, here.end
    verdict = restart.judge(job, end) if end is not None else restart.Verdict(False)
    if end is not None and not verdict.again:
        return _ended(here, setup, end, verdict)
    session_end, deadline = timers.session_end(job), timers.deadline(job)
    if session_end is not None and now >= session_end:
        return _ended(here, setup, End(True), restart.Verdict(False, "SessionEnded"))
    if deadline is not None and now >= deadline:
        why = f"it has not ended within its activeDeadlineSeconds ({job.spec.active_deadline_seconds})"
        late = End(False, f"{why}; {end.why}" if end is not None and end.why else why)
        return _ended(here, setup, late, restart.Verdict(False, "DeadlineExceeded"))
    return _restart(here, setup, end) if end is not None else None


def _restart(here: Standing, setup: Setup, end: End) -> Plan:
    """The new attempt is in the status before anything is done about it: it is counted once, whoever goes on."""
    job, now, before = here.job, here.seen.now, here.job.status
    at = restart.begins_at(job, end, now, setup)
    message = restart.message(job, end, at)
    anew = msgspec.structs.replace(before, attempt=before.attempt + 1, restart_count=before.restart_count + 1)
    stand = Stand(RESTARTING, message, desired=here.instances, message=message, next_attempt=at)
    tell = Tell("Warning", "IPUJobRestarting", message)
    tells = (tell, *poplar_recovery.told(here, end.pods))
    anew = full_reset.begun(here, end.pods, anew)
    return Plan(tells, status.told(msgspec.structs.replace(job, status=anew), stand, (), now))


def _ended(here: Standing, setup: Setup, end: End, verdict: restart.Verdict) -> Plan:
    """Said first, and alone: what is cleaned away afterwards could no longer say how it ended."""
    job, partitions = here.job, not here.unready
    fate = _fate(job, setup, success=end.success)
    if end.success:
        what = "is over: its ttl has passed" if verdict.reason == "SessionEnded" else "has completed"
        message = f"IPUJob {job.metadata.namespace}/{job.metadata.name} {what}; {fate}."
        stand = Stand(COMPLETE, status.DONE, here.instances, 0, partitions, verdict.reason, message)
        return Plan((), status.told(job, stand, here.workers, here.seen.now))
    why = pod_outcome.bounded(end.why, pod_outcome.LIMIT - 200)
    why = f"{why}; {verdict.note}" if verdict.note else why
    stand = Stand(FAILED, why, here.instances, 0, partitions, verdict.reason, f"{why}; {fate}")
    tell = Tell("Warning", verdict.reason or "IPUJobFailed", why)
    known = msgspec.structs.replace(job, status=full_reset.begun(here, end.pods, job.status))
    return Plan((tell, *poplar_recovery.told(here, end.pods)), status.told(known, stand, here.workers, here.seen.now))


def _warned(here: Standing) -> tuple[Action, ...]:
    """The people of a session, some time before its end."""
    warning, end = timers.session_warning(here.job), timers.session_end(here.job)
    if warning is None or end is None or here.seen.now < warning:
        return ()
    text = f"this session ends at {rfc3339_whole(end)}: its pods are removed and its partitions freed"
    return (Tell("Warning", "SessionEnds", text),)


def _next_s(here: Standing) -> float | None:
    job = here.job
    return timers.next_s(here.seen.now, timers.deadline(job), timers.session_warning(job), timers.session_end(job))


def _surplus(here: Standing) -> tuple[Action, ...]:
    return tuple(FreePartition(name) for name in here.surplus)


def _making(here: Standing, setup: Setup) -> tuple[Action, ...]:
    """What is missing and can be made now (behaviours 17, 19, 20, 21, 26, 28)."""
    if not here.ready:
        return ()
    found: list[Action] = []
    avoid = preflight.avoided(here.job, here.seen.now)
    if here.with_launcher:
        for body in small_objects(here.job):
            kind, name = body["kind"], body["metadata"]["name"]
            there = here.seen.objects.get((kind, name))
            if there is None:
                found.append(Make(kind, name, body))
            elif there.metadata.annotations.get(CONTENT) != body["metadata"]["annotations"][CONTENT]:
                found.append(Change(kind, name, body))
    for instance in here.ready:
        entry = here.entry(instance)
        if entry is None or here.conflict(instance) or here.is_mixed(instance):
            continue
        for index, name in here.workers_of(instance).items():
            if name not in here.pods:
                body = pods.worker(here.job, index, entry, entry.attempt, setup, avoid=avoid)
                found.append(Make("Pod", name, body))
    complete = here.instances and len(here.made) == here.instances and not found
    if here.with_launcher and complete and here.launcher_name not in here.pods and not preflight.is_open(here):
        entries = [entry for instance in here.ready if (entry := here.entry(instance)) is not None]
        body = pods.launcher(here.job, entries, here.attempt, setup, avoid=avoid)
        found.append(Make("Pod", here.launcher_name, body))
    if here.with_launcher and (taken := waiting_reason.taken_names(here)):
        # half a job would only hold what others could use
        return tuple(each for each in found if isinstance(each, Make) and (each.kind, each.name) in taken)
    return tuple(found)


def small_objects(job: IPUJob) -> list[Body]:
    """In the order in which they are made."""
    return [config.config_map(job), access.service_account(job), access.role(job), access.role_binding(job)]


def _removed(found: Iterable[JobPod], seen: Seen) -> tuple[RemovePod, ...]:
    """Of a job that wants none of them any more; by force what is lost with its node."""
    actions = []
    for pod in found:
        forced_at = lost_pods.forced_at(pod, seen)
        if forced_at is not None and seen.now >= forced_at:
            actions.append(RemovePod(pod.metadata.name, pod.metadata.uid, 0))
        elif not pod.metadata.deletion_timestamp:
            actions.append(RemovePod(pod.metadata.name, pod.metadata.uid))
    return tuple(actions)


def _next_forced_s(found: Iterable[JobPod], seen: Seen) -> float | None:
    return timers.next_s(seen.now, *lost_pods.next_forced(found, seen))


def _freed(entries: Mapping[str, Entry]) -> tuple[FreePartition, ...]:
    return tuple(FreePartition(name) for name, entry in sorted(entries.items()) if entry.state != "deleting")

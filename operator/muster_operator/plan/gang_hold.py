"""Gang scheduling: instances that cannot start together release their partitions after a while and retry later.

With a launcher the whole job is a gang, without one each instance is. A gang that holds partitions while others are
missing, or while its pods cannot be created or scheduled, blocks jobs that could run: two jobs that each hold half of
what both need would wait forever. After ``hold_timeout_s`` the operator deletes its pods and releases its partitions.
The gang then waits before it requests them again; the delay grows with each try and differs between jobs. Which
instances wait, until when and why is in the status before anything is released. Part of behaviour 49.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from muster_kube.api import times
from muster_operator.job import pod_outcome, status
from muster_operator.job.snapshot import JobPlan, JobPod, JobSetup, RecordEvent
from muster_operator.job.status import PENDING, RESTARTING, RUNNING, StatusUpdate
from muster_operator.job.status_types import GangHoldStatus
from muster_operator.job.types import IPUJob
from muster_operator.plan import waiting_reason
from muster_operator.plan.hardware import preflight
from muster_operator.plan.job_state import JobState

EVENT = "GaveBack"
_DOUBLINGS = 30  # more would overflow
_ROUNDED_S = 1.0  # times in the status are whole seconds, rounded down
_SHOWN = 8  # instances named in a message


def give_back_or_retry(state: JobState) -> JobPlan | None:
    """The status to write before any other action; None: nothing to change."""
    if status.has_condition(state.job.status, RESTARTING):
        return None
    if state.held_instances and _may_try_again(state):
        return _try_again(state)
    if state.held_instances and _is_edited(state) and state.snapshot.now < _until(state):
        return _end_wait(state)  # reported now, because the edit is no longer visible after everything is released
    late = {instance: why for instance, (at, why) in _find_waiting(state).items() if state.snapshot.now >= at}
    return _give_back(state, late) if late else None


def next_change_at(state: JobState) -> float | None:
    """When this needs attention next, in seconds since the epoch."""
    if state.held_instances and state.job.status.given_back is not None:
        return _until(state)
    return min((at for at, _ in _find_waiting(state).values()), default=None)


def describe_hold(state: JobState) -> str:
    """Why some of the job's instances hold no partitions now; empty if none do."""
    given_back = state.job.status.given_back
    return given_back.message if state.held_instances and given_back is not None else ""


def is_back_off_over(state: JobState) -> bool:
    """The back-off ends once the whole job has started."""
    if state.held_instances or not state.is_running:
        return False
    return not any(
        _waits_for_node(pod) for instance in state.active_instances for pod in state.present_workers(instance)
    )


def _may_try_again(state: JobState) -> bool:
    """After everything is released; at once if the job was edited, because the edit may fix the cause."""
    held = {state.partition(instance) for instance in state.held_instances}
    names = {name for instance in state.held_instances for name in state.workers_of(instance).values()}
    if not held.isdisjoint(state.entries) or not names.isdisjoint(state.pods):
        return False
    if state.with_launcher and state.launcher_name in state.pods:
        return False
    return state.snapshot.now >= _until(state) or _is_edited(state)


def _until(state: JobState) -> float:
    """0 if that is further away than the delay of this try, which means that the clock was set back."""
    given_back = state.job.status.given_back
    if given_back is None:
        return 0.0
    until = times.seconds(given_back.until or "")
    longest_s = _delay_s(state.job, given_back.count, state.setup) + _ROUNDED_S
    return until if until - state.snapshot.now <= longest_s else 0.0


def _is_edited(state: JobState) -> bool:
    return state.job.metadata.generation != state.job.status.observed_generation


def _end_wait(state: JobState) -> JobPlan:
    before, now = state.job.status, times.rfc3339_whole(state.snapshot.now)
    assert before.given_back is not None  # noqa: S101 - something is held back
    given_back = msgspec.structs.replace(before.given_back, until=now)
    return JobPlan((), msgspec.structs.replace(before, given_back=given_back, last_reconcile_time=now))


def _try_again(state: JobState) -> JobPlan:
    before = state.job.status
    assert before.given_back is not None  # noqa: S101 - something is held back
    tried = msgspec.structs.replace(before.given_back, instances=(), until=None)
    now = times.rfc3339_whole(state.snapshot.now)
    return JobPlan((), msgspec.structs.replace(before, given_back=tried, last_reconcile_time=now))


def _give_back(state: JobState, late: dict[int, str]) -> JobPlan:
    before, now = state.job.status, state.snapshot.now
    former = before.given_back or GangHoldStatus()
    count, until = former.count, former.until
    if until is None:
        count += 1
        until = times.rfc3339_whole(now + _delay_s(state.job, count, state.setup) + _ROUNDED_S)
    numbers = sorted(state.held_instances.union(late))
    released = "its partitions"
    if not state.with_launcher:
        named = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
        released = f"the partition of instance {named}" if len(numbers) == 1 else f"the partitions of instances {named}"
    text = f"releases {released}, held for {state.setup.hold_timeout_s:g} s without a start; tries again at {until}"
    text = pod_outcome.shorten(f"{text}: {late[min(late)]}")
    given_back = GangHoldStatus(instances=tuple(numbers), count=count, until=until, message=text)
    changed = msgspec.structs.replace(preflight.forget_checks(before), given_back=given_back)
    job = msgspec.structs.replace(state.job, status=changed)
    kind = RUNNING if state.is_running and all(each >= state.instances for each in numbers) else PENDING
    stand = StatusUpdate(
        kind,
        text,
        desired=state.instances,
        current=len([each for each in state.complete_instances if each not in numbers]),
        reason=EVENT if kind == PENDING else "",
        message=text if kind == PENDING else "",
    )
    return JobPlan((RecordEvent("Warning", EVENT, text),), status.compose_status(job, stand, state.workers, now))


def _delay_s(job: IPUJob, count: int, setup: JobSetup) -> float:
    """Up to 50 % is added, different for each job, so that two jobs that release together do not retry together."""
    delay_s: float = min(setup.hold_delay_limit_s, setup.hold_delay_s * 2 ** min(count - 1, _DOUBLINGS))
    chance = hashlib.blake2b(f"{job.metadata.uid}/{count}".encode(), digest_size=2).digest()
    return delay_s * (1.0 + int.from_bytes(chance) / (1 << 17))


def _find_waiting(state: JobState) -> dict[int, tuple[float, str]]:
    """Instances that hold partitions and have not started, with the time at which they must release them, and what is
    missing."""
    if not state.setup.hold_timeout_s or (state.with_launcher and (state.held_instances or state.is_running)):
        return {}
    gangs = [range(state.instances)] if state.with_launcher else [(instance,) for instance in state.active_instances]
    hindered = bool(state.snapshot.refused) or waiting_reason.find_obstacle(state) is not None
    found: dict[int, tuple[float, str]] = {}
    for gang in gangs:
        if not any((entry := state.entry(each)) is not None and entry.state == "active" for each in gang):
            continue
        if any(each in state.restart_delays_s for each in gang):
            continue
        pods = [pod for instance in gang for pod in state.present_workers(instance)]
        if state.with_launcher and state.launcher is not None:
            pods.append(state.launcher)
        if why := _describe_lack(state, gang, pods, hindered=hindered):
            at = _last_arrival(state, gang, pods) + state.setup.hold_timeout_s
            found |= dict.fromkeys(gang, (at, why))
    return found


def _describe_lack(state: JobState, gang: Iterable[int], pods: list[JobPod], *, hindered: bool) -> str:
    """Empty if nothing is missing, or only what has not been requested yet. hindered: the API server rejects an object
    of the job, or an obstacle prevents requests."""
    if unscheduled := [pod for pod in pods if _waits_for_node(pod)]:
        return (
            waiting_reason.describe_pending_pod(unscheduled[0])
            or f"pod {unscheduled[0].metadata.name} has not been scheduled"
        )
    if status.has_condition(state.job.status, RUNNING):
        return ""  # the lost pods are just being recreated; if that fails, the job is Pending from then on
    if without := [each for each in gang if _does_not_come(state, each, hindered=hindered)]:
        return f"partition {state.partition(without[0])} is not available"
    if failed := preflight.find_failed_nodes(state):
        return failed[0].text
    if not hindered:
        return ""
    missing = [name for instance in gang for name in state.workers_of(instance).values() if name not in state.pods]
    if state.with_launcher and state.launcher_name not in state.pods:
        missing.append(state.launcher_name)
    return f"pod {missing[0]} could not be created" if missing else ""


def _does_not_come(state: JobState, instance: int, *, hindered: bool) -> bool:
    if instance in state.ready_set:
        return False
    entry = state.entry(instance)
    is_under_way = entry is not None and entry.state != "active"
    return is_under_way or hindered or state.partition(instance) in state.snapshot.refusals


def _last_arrival(state: JobState, gang: Iterable[int], pods: list[JobPod]) -> float:
    """The time at which the gang last got a partition or pod. An object without a time counts as new."""
    found = [each.last_transition_time for each in state.job.status.conditions if each.type == PENDING]
    if status.has_condition(state.job.status, RUNNING):
        found = []
    found += [entry.since for each in gang if (entry := state.entry(each)) is not None]
    found += [pod.metadata.creation_timestamp for pod in pods]
    return max((times.seconds(each) or state.snapshot.now for each in found), default=state.snapshot.now)


def _waits_for_node(pod: JobPod) -> bool:
    return not pod.spec.node_name and pod.status.phase == "Pending"

"""All or nothing: what cannot start together gives its partitions back after a while, and tries again later.

With a launcher the whole job starts together, without one each instance. One that holds partitions while not all of
them come, or while its pods cannot be made or scheduled, keeps them from others that could run: two jobs that each
hold half of what both need would wait for ever. So after ``hold_timeout_s`` its pods go, its partitions are freed, and
it waits, longer each time and not as long as another job would, before it asks again. Who waits, until when and why is
in the status before anything is given back. Part of behaviour 49.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from muster_kube.api import times
from muster_operator.job import pod_outcome, status
from muster_operator.job.snapshot import JobPlan, JobPod, JobSetup, RecordEvent
from muster_operator.job.status import PENDING, RESTARTING, RUNNING, StatusUpdate
from muster_operator.job.types import GangHoldStatus, IPUJob
from muster_operator.plan import preflight, waiting_reason
from muster_operator.plan.job_state import JobState

EVENT = "GaveBack"
_DOUBLINGS = 30  # more overflow
_SHOWN = 8  # instances that a message names


def give_back_or_retry(here: JobState, setup: JobSetup) -> JobPlan | None:
    """What is to be in the status before anything else; None: nothing new."""
    if status.has_condition(here.job.status, RESTARTING):
        return None
    if here.held_back and _may_try(here):
        return _tried_again(here)
    if here.held_back and _is_edited(here) and here.seen.now < _until(here):
        return _waits_no_longer(here)  # told now, as the edit is not seen any more once all is given back
    late = {instance: why for instance, (at, why) in _waiting(here, setup).items() if here.seen.now >= at}
    return _given_back(here, setup, late) if late else None


def next_change_at(here: JobState, setup: JobSetup) -> float | None:
    """When there will be something to do about it, in seconds since the epoch."""
    given_back = here.job.status.given_back
    if here.held_back and given_back is not None:
        return times.seconds(given_back.until or "")
    return min((at for at, _ in _waiting(here, setup).values()), default=None)


def describe_hold(here: JobState) -> str:
    """Why something of the job holds nothing now; empty: nothing does."""
    given_back = here.job.status.given_back
    return given_back.message if here.held_back and given_back is not None else ""


def is_back_off_over(here: JobState) -> bool:
    """The back-off is, once all of the job has started."""
    if here.held_back or not here.is_running:
        return False
    return not any(_waits_for_node(pod) for instance in here.places for pod in here.there(instance))


def _may_try(here: JobState) -> bool:
    """Once all is given back; at once if the job was edited, as that may be what it needs."""
    held = {here.partition(instance) for instance in here.held_back}
    names = {name for instance in here.held_back for name in here.workers_of(instance).values()}
    if not held.isdisjoint(here.entries) or not names.isdisjoint(here.pods):
        return False
    if here.with_launcher and here.launcher_name in here.pods:
        return False
    return here.seen.now >= _until(here) or _is_edited(here)


def _until(here: JobState) -> float:
    given_back = here.job.status.given_back
    return times.seconds(given_back.until or "") if given_back is not None else 0.0


def _is_edited(here: JobState) -> bool:
    return here.job.metadata.generation != here.job.status.observed_generation


def _waits_no_longer(here: JobState) -> JobPlan:
    before, now = here.job.status, times.rfc3339_whole(here.seen.now)
    assert before.given_back is not None  # noqa: S101 - something is held back
    given_back = msgspec.structs.replace(before.given_back, until=now)
    return JobPlan((), msgspec.structs.replace(before, given_back=given_back, last_reconcile_time=now))


def _tried_again(here: JobState) -> JobPlan:
    before = here.job.status
    assert before.given_back is not None  # noqa: S101 - something is held back
    tried = msgspec.structs.replace(before.given_back, instances=(), until=None)
    now = times.rfc3339_whole(here.seen.now)
    return JobPlan((), msgspec.structs.replace(before, given_back=tried, last_reconcile_time=now))


def _given_back(here: JobState, setup: JobSetup, late: dict[int, str]) -> JobPlan:
    before, now = here.job.status, here.seen.now
    former = before.given_back or GangHoldStatus()
    count, until = former.count, former.until
    if until is None:
        count += 1
        until = times.rfc3339_whole(now + _delay_s(here.job, count, setup) + 1)
    numbers = sorted(here.held_back.union(late))
    whose = "its partitions"
    if not here.with_launcher:
        named = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
        whose = f"the partition of instance {named}" if len(numbers) == 1 else f"the partitions of instances {named}"
    text = f"gives {whose} back, held for {setup.hold_timeout_s:g} s without a start; tries again at {until}"
    text = pod_outcome.shorten(f"{text}: {late[min(late)]}")
    given_back = GangHoldStatus(instances=tuple(numbers), count=count, until=until, message=text)
    anew = msgspec.structs.replace(preflight.forget_checks(before), given_back=given_back)
    job = msgspec.structs.replace(here.job, status=anew)
    state = RUNNING if here.is_running and all(each >= here.instances for each in numbers) else PENDING
    stand = StatusUpdate(
        state,
        text,
        desired=here.instances,
        current=len([each for each in here.made if each not in numbers]),
        reason=EVENT if state == PENDING else "",
        message=text if state == PENDING else "",
    )
    return JobPlan((RecordEvent("Warning", EVENT, text),), status.compose_status(job, stand, here.workers, now))


def _delay_s(job: IPUJob, count: int, setup: JobSetup) -> float:
    """Up to half as long again, another for each job: two that give back together are not to meet again."""
    delay_s: float = min(setup.hold_delay_limit_s, setup.hold_delay_s * 2 ** min(count - 1, _DOUBLINGS))
    chance = hashlib.blake2b(f"{job.metadata.uid}/{count}".encode(), digest_size=2).digest()
    return delay_s * (1.0 + int.from_bytes(chance) / (1 << 17))


def _waiting(here: JobState, setup: JobSetup) -> dict[int, tuple[float, str]]:
    """What holds partitions and has not started, by instance: when it has held them for too long, and what it lacks."""
    if not setup.hold_timeout_s or (here.with_launcher and (here.held_back or here.is_running)):
        return {}
    gangs = [range(here.instances)] if here.with_launcher else [(instance,) for instance in here.places]
    hindered = bool(here.seen.refused) or waiting_reason.find_obstacle(here, setup) is not None
    found: dict[int, tuple[float, str]] = {}
    for gang in gangs:
        if not any((entry := here.entry(each)) is not None and entry.state == "active" for each in gang):
            continue
        pods = [pod for instance in gang for pod in here.there(instance)]
        if here.with_launcher and here.launcher is not None:
            pods.append(here.launcher)
        if why := _lacks(here, gang, pods, hindered=hindered):
            at = _since(here, gang, pods) + setup.hold_timeout_s
            found |= dict.fromkeys(gang, (at, why))
    return found


def _lacks(here: JobState, gang: Iterable[int], pods: list[JobPod], *, hindered: bool) -> str:
    """Empty: nothing, or what nobody has asked for yet: it is asked for now. hindered: the API server does not take
    what the job asks for, or it cannot ask."""
    if unscheduled := [pod for pod in pods if _waits_for_node(pod)]:
        return (
            waiting_reason.describe_pending_pod(unscheduled[0])
            or f"pod {unscheduled[0].metadata.name} has not been scheduled"
        )
    if status.has_condition(here.job.status, RUNNING):
        return ""  # what it lost is only just being made again; if it cannot be, it is Pending from then on
    if without := [each for each in gang if _does_not_come(here, each, hindered=hindered)]:
        return f"partition {here.partition(without[0])} has not come"
    if failed := preflight.find_failed_nodes(here):
        return failed[0].text
    if not hindered:
        return ""
    missing = [name for instance in gang for name in here.workers_of(instance).values() if name not in here.pods]
    if here.with_launcher and here.launcher_name not in here.pods:
        missing.append(here.launcher_name)
    return f"pod {missing[0]} could not be made" if missing else ""


def _does_not_come(here: JobState, instance: int, *, hindered: bool) -> bool:
    if instance in here.is_ready:
        return False
    entry = here.entry(instance)
    is_under_way = entry is not None and entry.state != "active"
    return is_under_way or hindered or here.partition(instance) in here.seen.refusals


def _since(here: JobState, gang: Iterable[int], pods: list[JobPod]) -> float:
    """The last time that anything of it came. What says no time has just come."""
    found = [each.last_transition_time for each in here.job.status.conditions if each.type == PENDING]
    if status.has_condition(here.job.status, RUNNING):
        found = []
    found += [entry.since for each in gang if (entry := here.entry(each)) is not None]
    found += [pod.metadata.creation_timestamp for pod in pods]
    return max((times.seconds(each) or here.seen.now for each in found), default=here.seen.now)


def _waits_for_node(pod: JobPod) -> bool:
    return not pod.spec.node_name and pod.status.phase == "Pending"

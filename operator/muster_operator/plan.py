"""What is to be done about one job now: a value from values. Doing it again changes nothing.

In this order, each step only once what came before it is there: the finaliser (behaviour 16), partitions (29, 31), the
ConfigMap and the launcher's rights (17, 19), workers (20, 28), and the launcher when all of its workers were made (21).

What was refused is asked for again by every plan: whoever carries it out remembers when it is time to. Of a launcher
job that finds names of its own taken nothing is made but those, which settles whether they still are. Events (the Tell
actions) may be told again: they say the same each time.
"""

from collections.abc import Iterable, Mapping

from msgspec import UnsetType

from muster_operator import ending, names, status, waiting
from muster_operator.ipujob import FINALIZER, IPUJob, instances, ipus_per_instance
from muster_operator.partitions import Entry
from muster_operator.resources import access, config, pods
from muster_operator.resources.owned import CONTENT, Body
from muster_operator.seen import (
    Action,
    AddFinalizer,
    Change,
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
)
from muster_operator.standing import Standing, own_entries, own_pods
from muster_operator.status import COMPLETE, FAILED, PENDING, RUNNING, SUSPENDED, Stand


def plan(job: IPUJob, seen: Seen, setup: Setup) -> Plan:
    """Of a job whose spec admission lets through, defaults filled in."""
    if job.metadata.deletion_timestamp:
        return _delete(job, seen) if FINALIZER in job.metadata.finalizers else Plan()
    if FINALIZER not in job.metadata.finalizers:
        return Plan((AddFinalizer(),))
    if status.finished(job.status):
        return _clean_up(job, seen)
    if job.spec.suspend:
        return _suspend(job, seen)
    return _pursue(Standing(job, seen), setup)


def _delete(job: IPUJob, seen: Seen) -> Plan:
    """Pods, then partitions, then the finaliser (behaviours 34, 35); Kubernetes collects the rest by its owner."""
    if found := own_pods(job, seen):
        return Plan(_removed(found.values()))
    entries = own_entries(job, seen)
    if not entries:
        return Plan((DropFinalizer(),))
    line = waiting.for_release(entries, seen)
    return Plan(_freed(entries), status.line_only(job, line, seen.now) if line else None)


def _clean_up(job: IPUJob, seen: Seen) -> Plan:
    """A job that is over makes nothing again, whoever starts and whatever is deleted by hand (behaviours 37, 43)."""
    policy = "None" if isinstance(job.spec.clean_pod_policy, UnsetType) else job.spec.clean_pod_policy
    found, entries = own_pods(job, seen), own_entries(job, seen)
    workers = [pod for pod in found.values() if pod.metadata.labels.get(names.ROLE) == names.WORKER]
    actions: tuple[Action, ...] = ()
    if policy == "Workers":
        actions = _removed(workers)
    elif policy == "All":
        actions = _removed(found.values()) if found else _freed(entries)
    state = FAILED if status.is_true(job.status, FAILED) else COMPLETE
    ended = next(each for each in job.status.conditions if each.type == state)
    stand = Stand(
        state,
        job.status.last_message,
        desired=job.status.desired_replicas,
        partitions=job.status.ipu_partition_created and bool(entries),
        reason=ended.reason,
        message=ended.message,
    )
    return Plan(actions, status.told(job, stand, workers, seen.now))


def _suspend(job: IPUJob, seen: Seen) -> Plan:
    """No pods, no partitions; the small objects may stay (behaviour 44)."""
    found = own_pods(job, seen)
    actions = _removed(found.values()) if found else _freed(own_entries(job, seen))
    stand = Stand(SUSPENDED, "suspended", desired=instances(job.spec))
    tells: tuple[Action, ...] = ()
    if not status.is_true(job.status, SUSPENDED):
        tells = (Tell("Normal", "IPUJobSuspended", "its pods are removed and its partitions freed"),)
    return Plan((*actions, *tells), status.told(job, stand, (), seen.now))


def _pursue(here: Standing, setup: Setup) -> Plan:
    job, seen = here.job, here.seen
    if here.end is not None:
        return _ended(here)
    removals: tuple[Action, ...] = (*_removed(here.superfluous), *(FreePartition(name) for name in here.surplus))
    old = bool(here.misfits) or any(
        pod.metadata.labels.get(names.ATTEMPT) != str(here.attempt) for pod in here.superfluous
    )
    obstacle = waiting.obstacle(here, setup)
    making: tuple[Action, ...] = () if old else _making(here, setup)
    taking: tuple[Action, ...] = ()
    if here.to_take and not old and not (obstacle and obstacle.blocks):
        taking = (
            TakePartitions(
                here.to_take,
                attempt=here.attempt,
                size=ipus_per_instance(job.spec),
                gcds=here.workers_each,
                together=here.with_launcher,
            ),
        )
    stand = Stand(
        RUNNING if here.is_running else PENDING,
        waiting.line(here, obstacle),
        desired=here.instances,
        current=len(here.made),
        partitions=bool(here.instances) and not here.unready,
    )
    written = status.told(job, stand, here.workers, seen.now)
    tells: list[Action] = []
    if status.is_true(job.status, SUSPENDED):
        tells.append(Tell("Normal", "IPUJobResumed", "its partitions and pods are made again"))
    if obstacle is not None and obstacle.event:
        tells.append(Tell("Warning", obstacle.event, ending.bounded(obstacle.text)))
    return Plan((*removals, *making, *taking, *tells), written, waits_for_room=bool(here.unready))


def _ended(here: Standing) -> Plan:
    """Said first, and alone: what is cleaned away afterwards could no longer say how it ended."""
    success, why = here.end or (True, "")
    tells: tuple[Action, ...] = ()
    if success:
        stand = Stand(COMPLETE, status.DONE, desired=here.instances, partitions=not here.unready)
    else:
        stand = Stand(FAILED, why, desired=here.instances, partitions=not here.unready, message=why)
        tells = (Tell("Warning", "IPUJobFailed", why),)
    return Plan(tells, status.told(here.job, stand, here.workers, here.seen.now))


def _making(here: Standing, setup: Setup) -> tuple[Action, ...]:
    """What is missing and can be made now (behaviours 17, 19, 20, 21, 26, 28)."""
    if not here.ready:
        return ()
    found: list[Action] = []
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
        if entry is None or here.conflict(instance):
            continue
        for index, name in here.workers_of(instance).items():
            if name not in here.pods:
                found.append(Make("Pod", name, pods.worker(here.job, index, entry, here.attempt, setup)))
    complete = here.instances and len(here.made) == here.instances and not found
    if here.with_launcher and complete and here.launcher_name not in here.pods:
        entries = [entry for instance in here.ready if (entry := here.entry(instance)) is not None]
        found.append(Make("Pod", here.launcher_name, pods.launcher(here.job, entries, here.attempt, setup)))
    if here.with_launcher and (taken := waiting.taken_names(here)):
        # half a job would only hold what others could use
        return tuple(each for each in found if isinstance(each, Make) and (each.kind, each.name) in taken)
    return tuple(found)


def small_objects(job: IPUJob) -> list[Body]:
    """In the order in which they are made."""
    return [config.config_map(job), access.service_account(job), access.role(job), access.role_binding(job)]


def _removed(found: Iterable[JobPod]) -> tuple[RemovePod, ...]:
    return tuple(RemovePod(pod.metadata.name, pod.metadata.uid) for pod in found if not pod.metadata.deletion_timestamp)


def _freed(entries: Mapping[str, Entry]) -> tuple[FreePartition, ...]:
    return tuple(FreePartition(name) for name, entry in sorted(entries.items()) if entry.state != "deleting")

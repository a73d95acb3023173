"""A cluster that a state machine plays: jobs, their pods and objects, the tracker, and an executor of plans.

It does what the operator's does, and checks each action before it is done: what it may never be asked for is an
AssertionError here. What names belong to others is remembered, as the operator does.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import names, pod_outcome, status
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
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
    NodeCapacity,
    OwnedObject,
    PatchObject,
    RecordEvent,
    RemoveFinalizer,
    Snapshot,
    TakePartitions,
)
from muster_operator.job.types import FINALIZER, IPUJob, has_launcher, ipus_per_instance, workers_per_instance
from muster_operator.plan.phase_table import plan

ROUNDS = 32
Key = tuple[str, str, str]  # kind, namespace, name


class OperatorDied(Exception):
    """The operator ended in the middle of a turn."""


@dataclass
class SimulatedCluster:
    """room: partitions that V-IPU could still make."""

    now: float = 1_700_000_000.0
    setup: JobSetup = field(default_factory=JobSetup)
    jobs: dict[str, IPUJob] = field(default_factory=dict)  # by uid
    pods: dict[tuple[str, str], JobPod] = field(default_factory=dict)
    objects: dict[Key, OwnedObject] = field(default_factory=dict)
    others: dict[Key, str] = field(default_factory=dict)
    tracker: dict[str, PartitionEntry] = field(default_factory=dict)
    room: int = 8
    healthy: int = 1
    numbers: int = 0
    was_finished: set[str] = field(default_factory=set)
    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)  # by job, partition and attempt
    writes: int = 0
    dies_at: int = 0  # after that write the operator ends, once; 0: it lives

    def add(self, job: IPUJob) -> None:
        self.jobs[job.metadata.uid] = job

    # what the operator sees

    def snapshot(
        self, job: IPUJob, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> Snapshot:
        """Pods by their owner, as the operator's cache has them."""
        namespace, uid = job.metadata.namespace, job.metadata.uid
        return Snapshot(
            now=self.now,
            pods={name: pod for (where, name), pod in self.pods.items() if where == namespace and _owner(pod) == uid},
            objects={
                (kind, name): obj
                for (kind, where, name), obj in self.objects.items()
                if where == namespace and _owner(obj) == uid
            },
            foreign=foreign,
            entries={name: entry for name, entry in self.tracker.items() if entry.job == uid},
            refusals=refusals,
            node_capacity=NodeCapacity(nodes=2, healthy=self.healthy),
        )

    # one turn of the operator

    def turn(self, uid: str, dies_after: int | None = None) -> None:
        """Decides and acts until there is no news, then writes the status. dies_after: so many actions."""
        foreign: dict[tuple[str, str], str] = {}
        refusals: dict[str, PartitionRefusal] = {}
        left = [dies_after]
        for _ in range(ROUNDS):
            job = self.jobs.get(uid)
            if job is None:
                return
            decided = plan(job, self.snapshot(job, foreign, refusals), self.setup)
            self._check_plan(job, decided)
            if decided.status is not None and status.is_written_first(job.status, decided.status):
                self._write_status(uid, decided.status)
                continue
            news = False
            for action in decided.actions:
                if left[0] is not None:
                    if left[0] == 0:
                        raise OperatorDied
                    left[0] -= 1
                news |= self.act(uid, action, foreign, refusals)
                before = self._snapshot()
                self.act(uid, action, foreign, refusals)  # behaviours 30, 58: an answer that was lost
                assert self._snapshot() == before, f"twice is not once: {action}"
                if isinstance(action, AddFinalizer):
                    break
            if news:
                continue
            if decided.status is not None:
                self._write_status(uid, decided.status)
            self._check_rest(uid, foreign, refusals)
            return
        raise AssertionError("the job does not come to rest while the world stands still")

    def _check_rest(self, uid: str, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]) -> None:
        job = self.jobs.get(uid)
        if job is None:
            return
        decided = plan(job, self.snapshot(job, foreign, refusals), self.setup)
        assert decided.status is None, "the status is written again though nothing has changed"
        for action in decided.actions:
            assert not self.act(uid, action, foreign, refusals), action

    def _write_status(self, uid: str, written: Any) -> None:
        self.now += 1
        self.jobs[uid] = msgspec.structs.replace(self.jobs[uid], status=written)
        if status.is_finished(written):
            self.was_finished.add(uid)
        self._wrote()

    def _wrote(self) -> None:
        self.writes += 1
        if self.writes == self.dies_at:
            raise OperatorDied

    def _check_plan(self, job: IPUJob, decided: JobPlan) -> None:
        actions = [action for action in decided.actions if not isinstance(action, RecordEvent)]
        if FINALIZER not in job.metadata.finalizers:
            assert actions in ([AddFinalizer()], []), "something was made before the finaliser"
            return
        creating = [each for each in actions if isinstance(each, CreateObject | TakePartitions | PatchObject)]
        if job.metadata.uid in self.was_finished:
            assert not creating, f"a finished job made something: {creating}"
        if job.spec.suspend or job.metadata.deletion_timestamp:
            assert not creating, f"a job that is to have nothing made something: {creating}"

    def act(
        self,
        uid: str,
        action: Action,
        foreign: dict[tuple[str, str], str],
        refusals: dict[str, PartitionRefusal],
    ) -> bool:
        """Whether there is news."""
        job = self.jobs.get(uid)
        if job is None or isinstance(action, RecordEvent):
            return False
        match action:
            case AddFinalizer():
                return self._set_finalizers(job, {*job.metadata.finalizers, FINALIZER})
            case RemoveFinalizer():
                assert not [name for name, entry in self.tracker.items() if entry.job == uid], "a partition is left"
                assert not [pod for pod in self.pods.values() if _owner(pod) == uid], "a pod is left"
                return self._set_finalizers(job, {*job.metadata.finalizers} - {FINALIZER})
            case CreateObject():
                return self._make(job, action, foreign)
            case PatchObject():
                key = (action.kind, job.metadata.namespace, action.name)
                assert _owner(self.objects[key]) == uid, "another's object was changed"
                made = msgspec.convert(action.body, OwnedObject)
                if self.objects[key] == made:
                    return False
                self.objects[key] = made
                self._wrote()
                return True
            case DeletePod():
                return self._remove(job, action)
            case TakePartitions():
                return self._take(job, action, refusals)
            case FreePartition():
                entry = self.tracker.get(action.name)
                if entry is None or entry.state == "deleting":
                    return False
                assert entry.job == uid, "another job's partition was freed"
                users = [
                    name
                    for (where, name), pod in self.pods.items()
                    if _owner(pod) == uid and pod.metadata.labels.get(names.INSTANCE) == str(entry.instance)
                    if not (self.setup.free_partitions_at_end and pod_outcome.has_ended(pod))
                ]
                assert not users, f"{action.name} was freed under {users}"
                self.tracker[action.name] = msgspec.structs.replace(entry, state="deleting")
                self._wrote()
                return True
            case DeleteJob():
                if job.metadata.deletion_timestamp:
                    return False
                self.delete(uid)
                self._wrote()
                return True
        raise AssertionError(f"nobody asked for {action}")

    def _set_finalizers(self, job: IPUJob, wanted: set[str]) -> bool:
        news = set(job.metadata.finalizers) != wanted
        metadata = msgspec.structs.replace(job.metadata, finalizers=tuple(sorted(wanted)))
        self.jobs[job.metadata.uid] = msgspec.structs.replace(job, metadata=metadata)
        self.collect()
        if news:
            self._wrote()
        return news

    def _make(self, job: IPUJob, make: CreateObject, foreign: dict[tuple[str, str], str]) -> bool:
        uid, namespace = job.metadata.uid, job.metadata.namespace
        key = (make.kind, namespace, make.name)
        metadata = make.body["metadata"]
        assert (metadata["name"], metadata["namespace"]) == (make.name, namespace)
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [uid]
        if key in self.others:
            news = foreign.get((make.kind, make.name)) != self.others[key]
            foreign[make.kind, make.name] = self.others[key]
            return news
        if make.kind != "Pod":
            if key in self.objects:
                return False
            self.objects[key] = msgspec.convert(make.body, OwnedObject)
            self._wrote()
            return True
        if (namespace, make.name) in self.pods:
            assert _owner(self.pods[namespace, make.name]) == uid
            return False
        self._check_pod(job, make)
        self.numbers += 1
        body = copy.deepcopy(dict(make.body))
        body["metadata"]["uid"] = f"pod-{self.numbers}"
        body["metadata"]["creationTimestamp"] = rfc3339_whole(self.now)
        self.pods[namespace, make.name] = msgspec.convert(body, JobPod)
        self._check_alike(job)
        self._wrote()
        return True

    def _check_alike(self, job: IPUJob) -> None:
        """What starts together is of one attempt and one template: an instance, or the whole of a job with launcher."""
        gangs: dict[str, set[tuple[str, ...]]] = {}
        for pod in self.pods.values():
            if _owner(pod) == job.metadata.uid:
                labels = pod.metadata.labels
                gang = "" if has_launcher(job.spec) else labels[names.INSTANCE]
                gangs.setdefault(gang, set()).add((labels[names.ATTEMPT], labels.get(names.TEMPLATE, "")))
        assert all(len(each) == 1 for each in gangs.values()), f"pods of two kinds at once: {gangs}"

    def _check_pod(self, job: IPUJob, make: CreateObject) -> None:
        """Behaviours 21, 24, 31."""
        labels = make.body["metadata"]["labels"]
        if labels[names.ROLE] == names.WORKER:
            name = names.partition(job.metadata.namespace, job.metadata.name, int(labels[names.INSTANCE]))
            entry = self.tracker.get(name)
            assert entry is not None, f"{make.name} was made without a partition"
            assert (entry.job, entry.state) == (job.metadata.uid, "active")
            assert labels[names.ATTEMPT] == str(entry.attempt)
            return
        count = job.spec.job_instances
        assert isinstance(count, int)
        for index in range(count * workers_per_instance(job.spec)):
            name = names.worker_pod(job.metadata.name, index)
            assert (job.metadata.namespace, name) in self.pods, f"the launcher was made before {name}"

    def _remove(self, job: IPUJob, remove: DeletePod) -> bool:
        """A pod takes its time; see :meth:`end_deletions`."""
        key = (job.metadata.namespace, remove.name)
        pod = self.pods.get(key)
        if pod is None or pod.metadata.uid != remove.uid:
            return False
        assert _owner(pod) == job.metadata.uid, "another's pod was removed"
        if pod.metadata.deletion_timestamp:
            return False
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
        self.pods[key] = msgspec.structs.replace(pod, metadata=metadata)
        self._wrote()
        return True

    def _take(self, job: IPUJob, take: TakePartitions, refusals: dict[str, PartitionRefusal]) -> bool:
        assert (take.size, take.gcds) == (ipus_per_instance(job.spec), workers_per_instance(job.spec))
        assert self.healthy, "a partition was taken though no node is healthy"
        news = False
        wanted = {
            names.partition(job.metadata.namespace, job.metadata.name, instance): instance
            for instance in take.instances
        }
        for name in wanted:
            entry = self.tracker.get(name)
            if entry is not None and entry.job == job.metadata.uid and entry.attempt < take.attempt:
                self._reset(job, name, entry, take.attempt)
                news = True
        missing = [name for name in wanted if name not in self.tracker]
        if take.together and len(missing) > self.room:
            missing = []
            for name in wanted:
                news |= name not in refusals
                refusals[name] = PartitionRefusal(why="NoRoom", message="room for too few")
        for name in missing:
            if not self.room:
                news |= name not in refusals
                refusals[name] = PartitionRefusal(why="NoRoom", message="no room")
                continue
            self.room -= 1
            self.tracker[name] = PartitionEntry(
                job=job.metadata.uid,
                namespace=job.metadata.namespace,
                name=job.metadata.name,
                instance=wanted[name],
                attempt=take.attempt,
                size=take.size,
                gcds=take.gcds,
                controller="10.0.0.1:8090",
                selector="ipunode=node1",
                since=rfc3339_whole(self.now),
            )
            news = True
            self._wrote()
        return news

    def _reset(self, job: IPUJob, name: str, entry: PartitionEntry, attempt: int) -> None:
        """Behaviour 42."""
        uid = job.metadata.uid
        left = [
            pod.metadata.name
            for pod in self.pods.values()
            if _owner(pod) == uid
            and pod.metadata.labels.get(names.INSTANCE, "") in ("", str(entry.instance))
            and pod.metadata.labels[names.ATTEMPT] != str(attempt)
        ]
        assert not left, f"{name} was reset under {left}"
        key = (uid, name, attempt)
        self.resets[key] = self.resets.get(key, 0) + 1
        assert self.resets[key] == 1, f"{name} was reset twice for attempt {attempt}"
        self.tracker[name] = msgspec.structs.replace(
            entry, attempt=attempt, state="creating", reset=True, since=rfc3339_whole(self.now)
        )
        self._wrote()

    # what the rest of the world does

    def settle_partitions(self) -> None:
        for name, entry in list(self.tracker.items()):
            if entry.state == "deleting":
                del self.tracker[name]
                self.room += 1
            else:
                self.tracker[name] = msgspec.structs.replace(entry, state="active", reset=False)

    def end_deletions(self) -> None:
        for key, pod in list(self.pods.items()):
            if pod.metadata.deletion_timestamp:
                del self.pods[key]

    def go_well(self, rounds: int) -> None:
        """V-IPU, kubelets and the operator get on, one after the other."""
        for _ in range(rounds):
            for uid in list(self.jobs):
                self.turn(uid)
            self.settle_partitions()
            self.end_deletions()
            for key in list(self.pods):
                self.set_phase(key, "Running")

    def set_phase(self, key: tuple[str, str], phase: str) -> None:
        pod = self.pods[key]
        if pod.status.phase not in ("Failed", "Succeeded"):
            told = msgspec.structs.replace(pod.status, phase=phase)
            self.pods[key] = msgspec.structs.replace(pod, status=told)

    def edit(self, uid: str, **spec: Any) -> None:
        job = self.jobs[uid]
        changed = msgspec.structs.replace(job.spec, **spec)
        if changed != job.spec:
            metadata = msgspec.structs.replace(job.metadata, generation=job.metadata.generation + 1)
            self.jobs[uid] = msgspec.structs.replace(job, metadata=metadata, spec=changed)

    def delete(self, uid: str) -> None:
        job = self.jobs[uid]
        metadata = msgspec.structs.replace(job.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
        self.jobs[uid] = msgspec.structs.replace(job, metadata=metadata)
        self.collect()

    def collect(self) -> None:
        """Kubernetes' own garbage collector."""
        for uid, job in list(self.jobs.items()):
            if job.metadata.deletion_timestamp and not job.metadata.finalizers:
                del self.jobs[uid]
        for key, obj in list(self.objects.items()):
            if _owner(obj) not in self.jobs:
                del self.objects[key]

    def _snapshot(self) -> object:
        return (dict(self.jobs), dict(self.pods), dict(self.objects), dict(self.tracker), dict(self.others), self.room)


def _owner(obj: JobPod | OwnedObject) -> str:
    return next((owner.uid for owner in obj.metadata.owner_references if owner.controller), "")

"""Random lives of two jobs on nodes that are few, full, tainted, lost and back again: they move, roll out, scale, hold,
give back, restart and end, while the operator dies between any two writes and forgets what it had only in memory.

What a plan may never ask for is checked where it is carried out (simulated_cluster.py), the rest after each step. Each
life is a number, counted from the seed of the run, which plays others each time; a failure names its own.
``pytest tests/operator/plan/test_random_lives.py --examples=20000`` plays so many, and with ``--hypothesis-seed`` those
from that number on.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.operator.plan.faulty_cluster import GONE, NOT_READY, TAINTED, FaultyCluster
from tests.operator.plan.job_factory import make_job, template
from tests.operator.plan.simulated_cluster import OperatorDied

from muster_operator.job import names, pod_outcome, status
from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import Action, CreateObject, DeletePod, JobPod, JobSetup, Snapshot
from muster_operator.job.types import (
    HealthPolicy,
    IPUJob,
    RestartPolicy,
    Strategy,
    has_launcher,
    instances,
    workers_per_instance,
)
from muster_operator.plan import rollout
from muster_operator.plan.phase_table import plan

LIVES = 40  # in a run that does not say how many
BATCHES = 8
STEPS = 45
GRACE_S = 30  # of a pod that says nothing else
HOLDS: dict[str, Any] = {"hold_timeout_s": 100.0, "hold_delay_s": 30.0, "hold_delay_limit_s": 120.0}
HOUR_S = 3600.0
WAKES = 3  # by its own writes, one after the other


@dataclass
class RandomCluster(FaultyCluster):
    """Nodes with room for ``slots`` pods each. A launcher starts once all of its workers have."""

    slots: int = 4
    moved_at: dict[str, list[float]] = field(default_factory=dict)
    wakes: int = 0

    def snapshot(
        self, job: IPUJob, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> Snapshot:
        found = super().snapshot(job, foreign, refusals)
        return Snapshot(**{**vars(found), "room": self.room if found.room is not None else None})

    def act(
        self, uid: str, action: Action, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> bool:
        if (job := self.jobs.get(uid)) is None:
            return False
        if isinstance(action, CreateObject) and action.kind == "Pod":
            self._check_number(job, action)
        if isinstance(action, DeletePod) and action.grace_s != 0:
            return self._ask_to_end(job, action)
        return super().act(uid, action, foreign, refusals)

    def _check_rest(self, uid: str, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]) -> None:
        """What the status says may be what the next step waited for: the write wakes the operator."""
        job = self.jobs.get(uid)
        if job is not None and self.wakes < WAKES:
            wanted = plan(job, self.snapshot(job, foreign, refusals), self.setup).status
            if wanted is not None and status.is_written_first(job.status, wanted):
                self.wakes += 1
                self.turn(uid)
                return
        self.wakes = 0
        super()._check_rest(uid, foreign, refusals)

    def _ask_to_end(self, job: IPUJob, action: DeletePod) -> bool:
        key = (job.metadata.namespace, action.name)
        pod = self.pods.get(key)
        if pod is None or pod.metadata.uid != action.uid or pod.metadata.deletion_timestamp:
            return False
        self._goes_at(key, self.now + (GRACE_S if action.grace_s is None else action.grace_s))
        self._wrote()
        return True

    def _check_number(self, job: IPUJob, make: CreateObject) -> None:
        instance = make.body["metadata"]["labels"].get(names.INSTANCE)
        if instance is not None:
            surge = 0 if has_launcher(job.spec) else rollout.rollout_limits(job).surge
            assert int(instance) < instances(job.spec) + surge, f"{make.name} was made beyond what is wanted"

    def _write_status(self, uid: str, written: Any) -> None:
        before = self.jobs[uid].status
        if written.moves > before.moves:
            self.moved_at.setdefault(uid, []).append(self.now)
        super()._write_status(uid, written)
        self.now -= 1  # what only time changes is not to happen between a write and the look after it

    def place(self) -> None:
        """The scheduler, then the kubelets."""
        good = [node for node in self.nodes if node not in self.bad]
        used = {node: sum(pod.spec.node_name == node for pod in self._held()) for node in good}
        for key, pod in sorted(self.pods.items()):
            free = [node for node in good if used[node] < self.slots]
            if pod.spec.node_name or pod.metadata.deletion_timestamp or not free:
                continue
            node = min(free, key=lambda each: used[each])
            used[node] += 1
            self.pods[key] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        for key, pod in list(self.pods.items()):
            if pod.spec.node_name in self.nodes and pod.spec.node_name not in self._dead() and self._may_start(pod):
                self.set_phase(key, "Running")

    def _held(self) -> list[JobPod]:
        return [pod for pod in self.pods.values() if not pod_outcome.has_ended(pod)]

    def _may_start(self, pod: JobPod) -> bool:
        if pod.status.phase != "Pending" or pod.metadata.deletion_timestamp:
            return False
        if pod.metadata.labels[names.ROLE] == names.WORKER:
            return True
        job = self.jobs.get(pod.metadata.owner_references[0].uid)
        if job is None:
            return False
        workers = [
            self.pods.get((job.metadata.namespace, names.worker_pod(job.metadata.name, index)))
            for index in range(instances(job.spec) * workers_per_instance(job.spec))
        ]
        return all(each is not None and each.status.phase != "Pending" for each in workers)

    def collect_pods(self) -> None:
        """Of nodes that are gone, as Kubernetes does after a while."""
        for key, pod in list(self.pods.items()):
            if (bad := self.bad.get(pod.spec.node_name)) is not None and bad.kind == "Gone":
                del self.pods[key]

    def dead(self) -> set[str]:
        return self._dead()

    def forget(self) -> None:
        """What is only in the operator's memory."""
        self.rooms.clear()


class Life:
    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        setup = JobSetup(**HOLDS, moves_per_hour=self.chance.choice([1, 3]))
        self.cluster = RandomCluster(
            setup=setup, room=self.chance.choice([2, 3, 4, 8]), slots=self.chance.choice([2, 3, 6])
        )
        self.cluster.nodes = ("node-a", "node-b", "node-c", "node-d")[: self.chance.randint(2, 4)]
        self.uids = [self._submit(name) for name in ("one", "other")]
        self.played: list[str] = []

    def _submit(self, name: str) -> str:
        chance = self.chance
        with_launcher = chance.random() < 0.5
        job = make_job(
            name,
            launcher=with_launcher,
            instances=chance.randint(1, 3),
            workers=chance.randint(1, 2),
            finalizers=(),
            restartPolicy={
                "type": chance.choice(["Never", "OnFailure", "Always"]),
                "backOffLimit": chance.randint(0, 3),
            },
            healthPolicy={"onFault": chance.choice(["Keep", "Move", "Move", "Fail"])},
            cleanPodPolicy=chance.choice(["None", "Workers", "All"]),
        )
        self.cluster.add(job)
        return job.metadata.uid

    def live(self) -> None:
        moves: list[Callable[[], None]] = [
            *[self.goes_well] * 6,
            *[self.looks] * 3,
            *[self.dies] * 4,
            *[self.time_passes] * 3,
            *[self.node_turns_bad] * 3,
            *[self.nodes_recover] * 2,
            *[self.pods_are_evicted] * 2,
            self.pods_are_collected,
            self.ipu_is_quarantined,
            *[self.pod_ends] * 2,
            self.job_ends,
            self.pod_is_deleted_by_hand,
            self.others_use_ipus,
            self.others_use_nodes,
            self.scale,
            *[self.edit_the_template] * 2,
            self.choose_a_strategy,
            self.suspend,
            self.choose_what_a_fault_does,
        ]
        for _ in range(STEPS):
            self._play(self.chance.choice(moves))
        self._play(self.let_things_be)
        for uid in self.uids:
            self.check_end(uid)
            if uid in self.cluster.jobs:
                self.cluster.delete(uid)
        self._play(self.let_things_be)
        cluster = self.cluster
        assert (cluster.jobs, cluster.pods, cluster.objects, cluster.tracker) == ({}, {}, {}, {})

    def _play(self, step: Callable[[], None]) -> None:
        self.played.append(step.__name__)
        step()
        self.check()

    # what happens

    def _some_job(self) -> IPUJob | None:
        return self.cluster.jobs.get(self.chance.choice(self.uids))

    def _turn(self, uid: str) -> None:
        self.cluster.turn(uid)
        self.check_that_something_wakes(uid)

    def looks(self) -> None:
        self._turn(self.chance.choice(self.uids))

    def dies(self) -> None:
        """After some action, or some write."""
        cluster = self.cluster
        after = self.chance.choice([None, self.chance.randint(0, 5)])
        if after is None:
            cluster.dies_at = cluster.writes + self.chance.randint(1, 4)
        try:
            cluster.turn(self.chance.choice(self.uids), dies_after=after)
        except OperatorDied:
            cluster.forget()
        cluster.dies_at = 0

    def goes_well(self) -> None:
        """The operator, V-IPU, the scheduler and the kubelets of nodes that live."""
        cluster = self.cluster
        for _ in range(self.chance.randint(1, 3)):
            for uid in list(cluster.jobs):
                self._turn(uid)
            cluster.settle_partitions()
            cluster.end_deletions()
            cluster.place()
            cluster.now += 5

    def time_passes(self) -> None:
        self.cluster.now += self.chance.choice([1, 12, 40, 40, 110, 110, 400, 4000])
        self.cluster.forget()  # answers about room are old by then

    def node_turns_bad(self) -> None:
        node = self.chance.choice(self.cluster.nodes)
        self.cluster.bad[node] = self.chance.choice([TAINTED, NOT_READY, GONE])

    def nodes_recover(self) -> None:
        for node in list(self.cluster.bad):
            if self.chance.random() < 0.6:
                if self.cluster.bad[node] is GONE:
                    self.cluster.collect_pods()
                del self.cluster.bad[node]

    def pods_are_evicted(self) -> None:
        for node, bad in self.cluster.bad.items():
            if bad is NOT_READY:
                self.cluster.evict(node, grace_s=self.chance.choice([0, 30, 300]))

    def pods_are_collected(self) -> None:
        self.cluster.collect_pods()

    def ipu_is_quarantined(self) -> None:
        if found := sorted(self.cluster.tracker):
            self.cluster.bad_ipus[self.chance.choice(found)] = ("IPU 10.1.5.10/3 is quarantined",)

    def pod_ends(self) -> None:
        found = sorted(key for key, pod in self.cluster.pods.items() if pod.status.phase == "Running")
        if found:
            self.cluster.set_phase(self.chance.choice(found), self.chance.choice(["Succeeded", "Failed"]))

    def job_ends(self) -> None:
        if (job := self._some_job()) is None:
            return
        found = [key for key in self.cluster.pods if key[1].startswith(f"{job.metadata.name}-")]
        phase = self.chance.choice(["Succeeded", "Failed"])
        for key in [key for key in found if key[1].endswith("-launcher")] or found:
            if self.cluster.pods[key].status.phase == "Running":
                self.cluster.set_phase(key, phase)

    def pod_is_deleted_by_hand(self) -> None:
        if found := sorted(self.cluster.pods):
            del self.cluster.pods[self.chance.choice(found)]

    def others_use_ipus(self) -> None:
        self.cluster.room = self.chance.randint(0, 8)

    def others_use_nodes(self) -> None:
        self.cluster.slots = self.chance.randint(1, 6)

    def scale(self) -> None:
        if (job := self._some_job()) is not None:
            self.cluster.edit(job.metadata.uid, job_instances=self.chance.randint(0, 4))

    def edit_the_template(self) -> None:
        """Under a launcher only as admission lets anybody: while it is suspended."""
        if (job := self._some_job()) is None or (has_launcher(job.spec) and not job.spec.suspend):
            return
        pods = template(terminationGracePeriodSeconds=self.chance.randint(1, 3))
        self.cluster.edit(job.metadata.uid, workers=msgspec.structs.replace(job.spec.workers, template=pods))

    def choose_a_strategy(self) -> None:
        if (job := self._some_job()) is None:
            return
        surge, unavailable = self.chance.choice([(0, 1), (1, 0), (1, 1), (2, 0)])
        bounds = {"maxSurge": surge, "maxUnavailable": unavailable}
        kind = self.chance.choice([{"type": "Recreate"}, {"type": "RollingUpdate", "rollingUpdate": bounds}])
        strategy = msgspec.convert(kind, Strategy)
        self.cluster.edit(job.metadata.uid, workers=msgspec.structs.replace(job.spec.workers, strategy=strategy))

    def suspend(self) -> None:
        if (job := self._some_job()) is not None:
            self.cluster.edit(job.metadata.uid, suspend=self.chance.random() < 0.5)

    def choose_what_a_fault_does(self) -> None:
        if (job := self._some_job()) is not None:
            policy = HealthPolicy(on_fault=self.chance.choice(["Keep", "Move", "Fail"]))
            self.cluster.edit(job.metadata.uid, health_policy=policy)

    def let_things_be(self) -> None:
        """All is well from here on, until nothing moves: nodes, IPUs, and room for everybody."""
        cluster = self.cluster
        cluster.collect_pods()
        cluster.bad.clear()
        cluster.bad_ipus.clear()
        cluster.room, cluster.slots = 64, 64
        for wait_s in (0, 400, HOUR_S, 400):
            cluster.now += wait_s
            cluster.forget()
            rests = 0
            for _ in range(40):
                before = cluster.writes
                self.goes_well()
                rests = rests + 1 if cluster.writes == before else 0
                if rests == 3:
                    break
            else:
                raise AssertionError("the world does not come to rest")

    # what is always so

    def check(self) -> None:
        cluster = self.cluster
        held = [(entry.job, entry.instance) for entry in cluster.tracker.values()]
        assert len(held) == len(set(held)), f"two partitions for one instance: {sorted(cluster.tracker)}"
        for moved_at in cluster.moved_at.values():
            assert sum(at > cluster.now - HOUR_S for at in moved_at) <= cluster.setup.moves_per_hour
        for job in cluster.jobs.values():
            policy, found = job.spec.restart_policy, job.status
            assert isinstance(policy, RestartPolicy)
            assert found.restart_count <= (0 if policy.type == "Never" else policy.back_off_limit)
            true = {each.type for each in found.conditions if each.status == "True"}
            assert len(true - {"HealthDegraded"}) == bool(found.conditions), true
            assert not (status.is_finished(found) and "HealthDegraded" in true)

    def check_that_something_wakes(self, uid: str) -> None:
        """A job at rest that is not what it should be is looked at again: by time, when there is room, or because what
        it waits for will tell. A kubelet that is away tells nothing."""
        cluster = self.cluster
        if (job := cluster.jobs.get(uid)) is None:
            return
        decided = plan(job, cluster.snapshot(job, {}, {}), cluster.setup)
        if decided.again_s is not None or self._is_as_it_should_be(job):
            return
        pods = [pod for pod in cluster.pods.values() if pod.metadata.owner_references[0].uid == uid]
        hanging = [pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp and not self._will_tell(pod)]
        assert not hanging, f"{hanging} will never go"
        if decided.waits_for_room:
            return
        entries = [entry for entry in cluster.tracker.values() if entry.job == uid]
        tells = [pod for pod in pods if self._will_tell(pod)]
        assert tells or any(entry.state != "active" for entry in entries), f"{job.metadata.name} waits for nothing"

    def _will_tell(self, pod: JobPod) -> bool:
        if pod.metadata.deletion_timestamp:
            return pod.spec.node_name not in self.cluster.dead()
        return not pod_outcome.has_ended(pod)

    def _is_as_it_should_be(self, job: IPUJob) -> bool:
        if job.metadata.deletion_timestamp:
            return False
        if status.is_finished(job.status) or not instances(job.spec) or self._has_stopped(job):
            return True
        pods = [pod for pod in self.cluster.pods.values() if pod.metadata.owner_references[0].uid == job.metadata.uid]
        return job.spec.suspend and not pods

    def _has_stopped(self, job: IPUJob) -> bool:
        """A rollout whose new pods fail waits for a person."""
        return "; stopped: " in job.status.last_message

    def check_end(self, uid: str) -> None:
        job = self.cluster.jobs[uid]
        name = job.metadata.name
        pods = {key[1] for key in self.cluster.pods if key[1].startswith(f"{name}-")}
        entries = [entry for entry in self.cluster.tracker.values() if entry.job == uid]
        found = job.status
        if status.is_finished(found) or self._has_stopped(job):
            return
        if job.spec.suspend:
            assert (pods, entries, found.launcher_status) == (set(), [], "Pending")
        elif count := instances(job.spec):
            wanted = {names.worker_pod(name, index) for index in range(count * workers_per_instance(job.spec))}
            wanted |= {names.launcher_pod(name)} if has_launcher(job.spec) else set()
            assert pods == wanted
            assert (found.launcher_status, found.current_replicas, len(entries)) == ("Running", count, count)
            assert found.given_back is None


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_lives_converge_to_the_wanted_state_and_never_exceed_it(batch: int, pytestconfig: pytest.Config) -> None:
    first = int(pytestconfig.getoption("hypothesis_seed"))
    lives = pytestconfig.getoption("examples") or LIVES
    for number in range(first + batch, first + lives, BATCHES):
        life = Life(number)
        try:
            life.live()
        except Exception as error:
            error.add_note(f"life {number}: {', '.join(life.played)}")
            raise

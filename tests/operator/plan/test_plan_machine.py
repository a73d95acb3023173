"""Random lives of two jobs in one cluster: partitions come late, are refused or vanish, pods run, fail and are deleted
by hand, names are taken by others, specs are edited, the operator dies between any two writes.

What a plan may never ask for is checked where it is carried out (simulated_cluster.py). Behaviours 16, 19 to 21, 26 to
31, 34, 35, 37, 44.
"""

import contextlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.operator.plan.job_factory import make_job
from tests.operator.plan.simulated_cluster import OperatorDied, SimulatedCluster

from muster_operator.job import names, status
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import RestartPolicy
from muster_operator.resources.config import worker_names

numbers = st.integers(0, 7)
which = st.integers(0, 1)


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimulatedCluster(setup=JobSetup(hold_delay_s=30.0, hold_delay_limit_s=120.0))
        self.uids: list[str] = []

    @initialize(
        launcher=st.booleans(),
        instances=st.integers(1, 3),
        workers_each=st.integers(1, 2),
        begun=st.integers(0, 4),
        restarts=st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"]),
        limit=st.integers(0, 3),
    )
    def submit(self, launcher: bool, instances: int, workers_each: int, begun: int, restarts: str, limit: int) -> None:
        for namespace in ("one", "two"):
            job = make_job(
                namespace=namespace,
                launcher=launcher,
                instances=instances,
                workers=workers_each,
                finalizers=(),
                restartPolicy={"type": restarts, "backOffLimit": limit},
            )
            self.cluster.add(job)
            self.uids.append(job.metadata.uid)
        self.cluster.go_well(begun)

    def _there(self, number: int) -> str | None:
        uid = self.uids[number]
        return uid if uid in self.cluster.jobs else None

    @rule(number=which)
    def look(self, number: int) -> None:
        self.cluster.turn(self.uids[number])

    @rule(number=which, actions=st.integers(0, 6))
    def die_while_looking(self, number: int, actions: int) -> None:
        with contextlib.suppress(OperatorDied):
            self.cluster.turn(self.uids[number], dies_after=actions)

    @rule()
    def vipu_gets_on(self) -> None:
        self.cluster.settle_partitions()

    @rule(seconds=st.sampled_from([1, 9, 20, 400, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.cluster.now += seconds

    @rule(number=which, seconds=st.sampled_from([60, 5000]))
    def choose_a_deadline(self, number: int, seconds: int) -> None:
        if uid := self._there(number):
            self.cluster.edit(uid, active_deadline_seconds=seconds)

    @rule()
    def pods_are_gone(self) -> None:
        self.cluster.end_deletions()

    @precondition(lambda self: self.cluster.tracker)
    @rule(number=numbers)
    def a_partition_vanishes(self, number: int) -> None:
        found = sorted(self.cluster.tracker)
        self.cluster.tracker.pop(found[number % len(found)])
        self.cluster.room += 1

    @precondition(lambda self: self.cluster.pods)
    @rule(number=numbers, phase=st.sampled_from(["Running", "Running", "Running", "Succeeded", "Failed"]))
    def a_pod_gets_on(self, number: int, phase: str) -> None:
        found = sorted(self.cluster.pods)
        self.cluster.set_phase(found[number % len(found)], phase)

    @rule(rounds=st.integers(1, 4))
    def all_goes_well(self, rounds: int) -> None:
        self.cluster.go_well(rounds)

    @precondition(lambda self: self.cluster.pods)
    @rule(namespace=st.sampled_from(["one", "two"]), phase=st.sampled_from(["Succeeded", "Failed"]), seen=st.booleans())
    def a_job_comes_to_its_end(self, namespace: str, phase: str, seen: bool) -> None:
        found = [key for key in self.cluster.pods if key[0] == namespace]
        for key in [key for key in found if key[1].endswith("-launcher")] or found:
            self.cluster.set_phase(key, phase)
        if seen:
            self.cluster.turn(self.uids[("one", "two").index(namespace)])

    @precondition(lambda self: self.cluster.pods)
    @rule(number=numbers)
    def a_pod_is_deleted_by_hand(self, number: int) -> None:
        found = sorted(self.cluster.pods)
        del self.cluster.pods[found[number % len(found)]]

    @rule(number=which, instances=st.integers(0, 4))
    def scale(self, number: int, instances: int) -> None:
        if uid := self._there(number):
            self.cluster.edit(uid, job_instances=instances)

    @rule(number=which, suspend=st.booleans())
    def suspend(self, number: int, suspend: bool) -> None:
        if uid := self._there(number):
            self.cluster.edit(uid, suspend=suspend)

    @rule(number=which, policy=st.sampled_from(["None", "Workers", "All"]))
    def choose_what_is_cleaned(self, number: int, policy: str) -> None:
        if uid := self._there(number):
            self.cluster.edit(uid, clean_pod_policy=policy)

    @rule(number=which, kind=st.sampled_from(["Pod", "Pod", "ConfigMap", "Role"]), index=st.integers(0, 3))
    def others_take_a_name(self, number: int, kind: str, index: int) -> None:
        if uid := self._there(number):
            job = self.cluster.jobs[uid].metadata
            name = {
                "Pod": names.worker_pod(job.name, index),
                "ConfigMap": names.config_map(job.name),
                "Role": names.launcher_account(job.name),
            }[kind]
            key = (kind, job.namespace, name)
            if (job.namespace, name) not in self.cluster.pods and key not in self.cluster.objects:
                self.cluster.others[key] = "ReplicaSet somebody"

    @rule()
    def others_give_names_back(self) -> None:
        self.cluster.others.clear()

    @rule(healthy=st.integers(0, 1))
    def nodes_change(self, healthy: int) -> None:
        self.cluster.healthy = healthy

    @rule(room=st.integers(0, 8))
    def others_use_ipus(self, room: int) -> None:
        self.cluster.room = room

    @rule(number=which)
    def delete(self, number: int) -> None:
        if uid := self._there(number):
            self.cluster.delete(uid)

    @invariant()
    def a_job_is_in_one_state(self) -> None:
        for job in self.cluster.jobs.values():
            true = [each.type for each in job.status.conditions if each.status == "True"]
            assert len(true) == bool(job.status.conditions)
            assert job.status.launcher_status == status.launcher_status(job.status.conditions)

    @invariant()
    def restarts_are_bounded_and_counted(self) -> None:
        for job in self.cluster.jobs.values():
            found, policy = job.status, job.spec.restart_policy
            assert isinstance(policy, RestartPolicy)
            alone = sum(each.count for each in found.instance_restarts.values())
            limit = 0 if policy.type == "Never" else policy.back_off_limit
            assert found.restart_count == found.attempt + alone <= limit
            assert bool(found.next_attempt_time) == status.has_condition(found, status.RESTARTING)

    def _let_things_be(self) -> None:
        """Everything goes well from here on, until nothing moves."""
        cluster = self.cluster
        cluster.others.clear()
        cluster.healthy, cluster.room = 1, 64
        cluster.go_well(6)
        cluster.now += 400  # past any delay
        cluster.go_well(12)

    def teardown(self) -> None:
        cluster = self.cluster
        self._let_things_be()
        for uid in self.uids:
            if uid in cluster.jobs:
                self._check_end(uid)
                cluster.delete(uid)
        self._let_things_be()
        assert (cluster.jobs, cluster.pods, cluster.objects, cluster.tracker) == ({}, {}, {}, {})

    def _check_end(self, uid: str) -> None:
        """What a job comes to when nothing stands in its way any more: all that it wants, or nothing."""
        job = self.cluster.jobs[uid]
        pods = {name for where, name in self.cluster.pods if where == job.metadata.namespace}
        entries = [entry for entry in self.cluster.tracker.values() if entry.job == uid]
        assert not job.metadata.deletion_timestamp, "it was deleted, and is still there"
        if status.is_finished(job.status):
            for key in [key for key in self.cluster.pods if key[0] == job.metadata.namespace]:
                del self.cluster.pods[key]
            self.cluster.turn(uid)  # behaviour 37: simulated_cluster.py sees that nothing is made
            if job.spec.clean_pod_policy == "All":
                assert (pods, entries) == (set(), [])
        elif job.spec.suspend:
            assert (pods, entries, job.status.launcher_status) == (set(), [], "Pending")
        elif job.spec.job_instances:
            assert pods >= set(worker_names(job))
            assert job.status.launcher_status == "Running"
            assert job.status.current_replicas == job.status.desired_replicas == job.spec.job_instances == len(entries)


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

"""The operator ends after every single write of a job's life, and whoever goes on brings it to the same end (59).

Every point, not a sample: a life without an accident says how many writes there are; then it is lived once for each,
from the step on in which that write is.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from tests.operator.plan.job_factory import make_job
from tests.operator.plan.simulated_cluster import OperatorDied, SimulatedCluster

from muster_operator.job.types import IPUJob

ROUNDS = 8
ROUND_S = 5.0
TTL_S = 100_000

Look = tuple[object, ...]


def settle(cluster: SimulatedCluster) -> None:
    """Operator, V-IPU and kubelets get on, until nothing moves; who died is followed by another."""
    for _ in range(ROUNDS):
        for uid in list(cluster.jobs):
            try:
                cluster.turn(uid)
            except OperatorDied:
                cluster.turn(uid)
        cluster.settle_partitions()
        cluster.end_deletions()
        cluster.now += ROUND_S
        for key in list(cluster.pods):
            cluster.set_phase(key, "Running")


def end_pods(cluster: SimulatedCluster, phase: str) -> None:
    launchers = [key for key in cluster.pods if key[1].endswith("-launcher")]
    for key in launchers or list(cluster.pods):
        cluster.set_phase(key, phase)


def observe_cluster(cluster: SimulatedCluster) -> Look:
    """All but times and uids."""
    return (
        sorted((name, pod.status.phase, dict(pod.metadata.labels)) for (_, name), pod in cluster.pods.items()),
        sorted(cluster.objects),
        sorted((name, entry.state, entry.attempt) for name, entry in cluster.tracker.items()),
        [_describe_job(job) for job in cluster.jobs.values()],
        sorted(cluster.resets.items()),
        cluster.room,
    )


def _describe_job(job: IPUJob) -> Look:
    said = job.status
    conditions = [(each.type, each.status, each.reason) for each in said.conditions]
    counts = (said.desired_replicas, said.current_replicas, said.restart_count, said.attempt)
    return said.launcher_status, said.last_message, counts, conditions, job.metadata.finalizers


def submitted(_: SimulatedCluster) -> None:
    pass


def edit(cluster: SimulatedCluster, **spec: Any) -> None:
    for uid in cluster.jobs:
        cluster.edit(uid, **spec)


STEPS: tuple[Callable[[SimulatedCluster], None], ...] = (
    submitted,
    lambda cluster: end_pods(cluster, "Failed"),
    lambda cluster: edit(cluster, job_instances=3),
    lambda cluster: edit(cluster, job_instances=1),
    lambda cluster: end_pods(cluster, "Failed"),
    lambda cluster: edit(cluster, suspend=True),
    lambda cluster: edit(cluster, suspend=False),
    lambda cluster: end_pods(cluster, "Succeeded"),
    lambda cluster: setattr(cluster, "now", cluster.now + TTL_S),
)


def live(cluster: SimulatedCluster, begin: int = 0) -> Iterator[Look]:
    """What is seen after each step of its job's life, from the step ``begin`` on."""
    for step in STEPS[begin:]:
        step(cluster)
        settle(cluster)
        yield observe_cluster(cluster)
    assert (cluster.jobs, cluster.pods, cluster.objects, cluster.tracker) == ({}, {}, {}, {})


@pytest.mark.parametrize("launcher", [True, False])
@pytest.mark.parametrize("clean", ["None", "Workers"])
def test_59_an_operator_that_ends_after_any_write_is_followed_by_the_same_end(launcher: bool, clean: str) -> None:
    job = make_job(
        launcher=launcher,
        instances=2,
        finalizers=(),
        cleanPodPolicy=clean,
        ttlSecondsAfterFinished=TTL_S,
        restartPolicy={"type": "OnFailure", "backOffLimit": 3},
    )
    cluster = SimulatedCluster()
    cluster.add(job)
    expected, restarts, between = [], [], [deepcopy(cluster)]
    for look in live(cluster):
        expected.append(look)
        restarts += [each.status.restart_count for each in cluster.jobs.values()]
        between.append(deepcopy(cluster))
    assert restarts == [0, 1, 1, 1, 2, 2, 2, 2]
    assert cluster.writes > 40
    for begin, (before, after) in enumerate(pairwise(between)):
        for point in range(before.writes + 1, after.writes + 1):
            # up to here it is the life without an accident
            cluster = deepcopy(before)
            cluster.dies_at = point
            for number, found in enumerate(live(cluster, begin), begin):
                assert found == expected[number], f"after write {point}, step {number}"


def test_59_a_job_that_is_deleted_leaves_nothing_wherever_the_operator_ends() -> None:
    def end(begun: int, dies_at: int) -> int:
        cluster = SimulatedCluster()
        job = make_job(instances=2, finalizers=(), restartPolicy={"type": "Always"})
        cluster.add(job)
        cluster.go_well(begun)
        before = cluster.writes
        cluster.dies_at = dies_at and before + dies_at
        cluster.delete(job.metadata.uid)
        settle(cluster)
        assert (cluster.jobs, cluster.pods, cluster.objects, cluster.tracker) == ({}, {}, {}, {})
        return cluster.writes - before

    for begun in range(5):
        for point in range(1, end(begun, 0) + 1):
            end(begun, point)

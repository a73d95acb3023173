"""The operator ends after every single write of a job's life, and whoever goes on brings it to the same end (59).

Every point, not a sample: a life without an accident says how many writes there are; then it is lived once for each.
"""

from collections.abc import Callable

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


def live_through(job: IPUJob, dies_at: int = 0) -> tuple[list[Look], int, list[int]]:
    """What is seen after each step of its life, how many writes it took, and how often it had restarted after each."""
    cluster = SimulatedCluster(dies_at=dies_at)
    cluster.add(job)
    uid = job.metadata.uid
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: end_pods(cluster, "Failed"),
        lambda: cluster.edit(uid, job_instances=3),
        lambda: cluster.edit(uid, job_instances=1),
        lambda: end_pods(cluster, "Failed"),
        lambda: cluster.edit(uid, suspend=True),
        lambda: cluster.edit(uid, suspend=False),
        lambda: end_pods(cluster, "Succeeded"),
        lambda: setattr(cluster, "now", cluster.now + TTL_S),
    ]
    seen, restarts = [], []
    for step in steps:
        step()
        settle(cluster)
        seen.append(observe_cluster(cluster))
        restarts += [each.status.restart_count for each in cluster.jobs.values()]
    assert (cluster.jobs, cluster.pods, cluster.objects, cluster.tracker) == ({}, {}, {}, {})
    return seen, cluster.writes, restarts


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
    expected, writes, restarts = live_through(job)
    assert restarts == [0, 1, 1, 1, 2, 2, 2, 2]
    assert writes > 40
    for point in range(1, writes + 1):
        seen, *_ = live_through(job, dies_at=point)
        for number, (found, wanted) in enumerate(zip(seen, expected, strict=True)):
            assert found == wanted, f"after write {point} of {writes}, step {number}"


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

"""Behaviours 57 and 63: hardware that goes bad under a job that runs."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import decide, entries, workers
from tests.operator.plan.faulty_cluster import GONE, NOT_READY, TAINTED, FaultyCluster
from tests.operator.plan.job_factory import make_job, partition_of, template
from tests.wording.facts import missing_facts

from muster_kube.api.times import rfc3339_whole, seconds
from muster_operator.job.snapshot import JobSetup, NodeProblem, QueryCapacity, RecordEvent, TakePartitions
from muster_operator.job.status import NOT_READY as PARTITION_NOT_READY
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus
from muster_operator.job.types import IPUJob, RollingUpdate, Strategy
from muster_operator.plan.hardware.degradation import OVER_S
from muster_operator.plan.move import HOUR_S
from muster_operator.plan.phase_table import plan
from muster_operator.resources.template import digest

MOVE = {"onFault": "Move"}
UID = "uid-default-train"
ONE_MISSING = Strategy(rolling_update=RollingUpdate(max_surge=0, max_unavailable=1))


def begin(job: IPUJob | None = None, dies_at: int = 0, **policy: Any) -> FaultyCluster:
    """Two workers on node-a and node-b, running, and node-c free."""
    cluster = FaultyCluster(dies_at=dies_at)
    cluster.add(job or make_job(workers=2, finalizers=(), healthPolicy=policy or MOVE))
    cluster.live()
    return cluster


def job_status(cluster: FaultyCluster) -> IPUJobStatus:
    return cluster.jobs[UID].status


def degraded(cluster: FaultyCluster) -> IPUJobCondition:
    return next(each for each in job_status(cluster).conditions if each.type == "HealthDegraded")


def recorded_events(cluster: FaultyCluster) -> list[tuple[str, str]]:
    job = cluster.jobs[UID]
    actions = plan(job, cluster.snapshot(job, {}, {}), cluster.setup).actions
    return [(each.reason, each.message) for each in actions if isinstance(each, RecordEvent)]


def test_63_by_default_a_job_stays_and_the_fault_is_reported_until_it_ends() -> None:
    cluster = begin(onFault="Keep")
    before = dict(cluster.pods)
    cluster.bad["node-b"] = TAINTED
    cluster.live()
    condition = degraded(cluster)
    assert (condition.status, condition.reason) == ("True", "NodeFaulty")
    assert not missing_facts(
        condition.message, "train-worker-1", "node-b", TAINTED.what, "healthPolicy.onFault", "Keep"
    )
    [(reason, told)] = recorded_events(cluster)
    assert reason == "HealthDegraded"
    assert not missing_facts(told, "train-worker-1", "node-b", TAINTED.what)
    assert (dict(cluster.pods), job_status(cluster).moves, job_status(cluster).launcher_status) == (
        before,
        0,
        "Running",
    )

    written = cluster.writes
    cluster.live()
    assert cluster.writes == written, "what has been said costs nothing more"

    del cluster.bad["node-b"]
    assert [reason for reason, _ in recorded_events(cluster)] == ["HealthRestored"]
    cluster.live()
    over = degraded(cluster)
    assert (over.status, over.reason) == ("False", "HealthRestored")
    assert over.last_transition_time > condition.last_transition_time


def test_63_a_flapping_fault_is_reported_once_and_ends_after_a_delay() -> None:
    cluster = begin(onFault="Keep")
    cluster.bad["node-b"] = TAINTED
    cluster.turn(UID)
    condition, written = degraded(cluster), cluster.writes
    for _ in range(20):
        del cluster.bad["node-b"]
        cluster.turn(UID)
        cluster.bad["node-b"] = TAINTED
        cluster.turn(UID)
    assert (degraded(cluster), cluster.writes) == (condition, written)

    del cluster.bad["node-b"]
    job = cluster.jobs[UID]
    waits_s = plan(job, cluster.snapshot(job, {}, {}), cluster.setup).again_s
    assert waits_s is not None
    assert 0 < waits_s <= OVER_S
    cluster.now += waits_s
    cluster.turn(UID)
    assert degraded(cluster).reason == "HealthRestored"


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
def test_63_a_flapping_fault_costs_two_writes_in_ten_seconds(fraction: float) -> None:
    """Times in conditions are whole seconds, so each of them may be a second short."""
    cluster = begin(onFault="Keep")
    cluster.now = begun = int(cluster.now) + fraction
    written = cluster.writes
    while cluster.now < begun + 120.0:
        cluster.bad["node-b"] = NOT_READY
        cluster.turn(UID)
        cluster.now += 0.25
        del cluster.bad["node-b"]
        cluster.turn(UID)
        cluster.now += 0.25
    periods = (cluster.now - begun) // (OVER_S - 1)
    assert 2 * periods * 0.75 < cluster.writes - written <= 2 * (1 + periods)


def test_63_a_clock_that_was_set_back_keeps_no_fault_alive() -> None:
    cluster = begin(onFault="Keep")
    cluster.bad["node-b"] = TAINTED
    cluster.turn(UID)
    cluster.now -= 3600.0
    del cluster.bad["node-b"]
    cluster.turn(UID)
    assert degraded(cluster).reason == "HealthRestored"


def test_63_a_job_without_a_fault_has_no_such_condition() -> None:
    assert not [each for each in job_status(begin()).conditions if each.type == "HealthDegraded"]


def test_63_fail_ends_the_job_with_the_fault_and_restarts_nothing() -> None:
    policy = {"onFault": "Fail"}
    job = make_job(workers=2, finalizers=(), healthPolicy=policy, restartPolicy={"type": "Always"})
    cluster = begin(job)
    cluster.bad["node-a"] = TAINTED
    cluster.live()
    assert (job_status(cluster).launcher_status, job_status(cluster).restart_count) == ("Failed", 0)
    failed = next(each for each in job_status(cluster).conditions if each.type == "Failed")
    assert failed.reason == "HealthDegraded"
    assert not missing_facts(failed.message, "node-a", TAINTED.what)
    assert not [each for each in job_status(cluster).conditions if each.type == "HealthDegraded"], "it is over"
    assert cluster.pods == {}


@pytest.mark.parametrize(("phase", "ends"), [("Succeeded", "Completed"), ("Failed", "Failed")])
def test_63_the_write_that_ends_a_job_reports_its_bad_hardware(phase: str, ends: str) -> None:
    def lived(bad: bool) -> tuple[FaultyCluster, int]:
        cluster = begin(onFault="Keep")
        if bad:
            cluster.bad["node-b"] = TAINTED
        cluster.live()
        cluster.set_phase(("default", "train-launcher"), phase)
        before = cluster.writes
        cluster.live()
        return cluster, cluster.writes - before

    cluster, writes = lived(bad=True)
    assert job_status(cluster).launcher_status == ends
    condition = degraded(cluster)
    assert (condition.status, condition.reason) == ("False", "IPUJobEnded")
    assert not missing_facts(condition.message, "train-worker-1", "node-b", TAINTED.what)
    assert condition.last_transition_time == job_status(cluster).completion_time
    assert writes == lived(bad=False)[1], "it costs no write of its own"


def test_63_a_job_moves_off_a_bad_node_and_tells_from_where_to_where() -> None:
    job = make_job(workers=2, finalizers=(), healthPolicy={**MOVE, "gracePeriodSeconds": 90})
    cluster = begin(job)
    cluster.bad["node-a"] = TAINTED
    cluster.turn(UID)
    assert degraded(cluster).reason == "IPUJobMoving"
    assert cluster.grace == [("train-launcher", 90)], "the launcher ends first, and has the time that it was given"
    cluster.live()
    assert cluster.grace[1:] == [("train-worker-1", 90), ("train-worker-0", 90)]
    status = job_status(cluster)
    assert (status.launcher_status, status.moves, status.attempt, status.restart_count) == ("Running", 1, 1, 0)
    assert status.last_move is not None
    assert status.last_move.reason == "NodeFaulty"
    assert cluster.resets == {(UID, partition_of(job), 1): 1}
    assert cluster.where() == {"train-launcher": "node-b", "train-worker-0": "node-b", "train-worker-1": "node-c"}
    assert (degraded(cluster).status, degraded(cluster).reason) == ("False", "IPUJobMoved")
    assert not missing_facts(degraded(cluster).message, "node-a", "node-b, node-c", "train-launcher", TAINTED.what)


def test_63_several_ranks_that_are_hit_at_once_are_one_move() -> None:
    cluster = begin()
    cluster.nodes = ("node-a", "node-b", "node-c", "node-d")
    cluster.bad |= {"node-a": TAINTED, "node-b": TAINTED}
    cluster.live()
    assert job_status(cluster).moves == 1
    assert set(cluster.where().values()) == {"node-c", "node-d"}


def test_63_a_job_keeps_its_place_while_there_are_too_few_healthy_nodes() -> None:
    cluster = begin()
    cluster.bad |= {"node-a": TAINTED, "node-c": TAINTED}
    before = dict(cluster.pods)
    cluster.live()
    assert dict(cluster.pods) == before
    assert not missing_facts(degraded(cluster).message, "1", "2"), "healthy nodes, and nodes that it needs"
    del cluster.bad["node-c"]
    cluster.live()
    assert job_status(cluster).moves == 1
    assert set(cluster.where().values()) == {"node-b", "node-c"}


def test_63_a_node_that_flaps_moves_a_job_three_times_an_hour_at_most() -> None:
    cluster = begin()
    for _ in range(6):
        cluster.bad = {cluster.where()["train-worker-0"]: TAINTED}
        cluster.live(12)
    assert job_status(cluster).moves == 3
    next_move_at = rfc3339_whole(seconds(job_status(cluster).move_starts[0]) + HOUR_S)
    assert not missing_facts(degraded(cluster).message, next_move_at, "3")
    cluster.hour()
    cluster.live()
    assert job_status(cluster).moves == 4


def test_63_with_no_moves_allowed_it_says_so_once() -> None:
    cluster = FaultyCluster(setup=JobSetup(moves_per_hour=0))
    cluster.add(make_job(workers=2, finalizers=(), healthPolicy=MOVE))
    cluster.live()
    cluster.bad["node-b"] = TAINTED
    cluster.live()
    written = cluster.writes
    cluster.live()
    assert cluster.writes == written
    assert job_status(cluster).moves == 0
    assert not missing_facts(degraded(cluster).message, "moves_per_hour", "0")


def test_63_a_quarantined_ipu_moves_the_job_to_another_partition_if_there_is_room() -> None:
    job = make_job(workers=2, finalizers=(), healthPolicy=MOVE)
    cluster = begin(job)
    cluster.elsewhere = 0
    quarantined = "IPU 10.1.5.10/3 is quarantined (ipu: IpuErrorState)"
    cluster.bad_ipus[partition_of(job)] = (quarantined,)
    cluster.live()
    assert job_status(cluster).moves == 0
    pods_and_nodes = ("train-worker-0", "train-worker-1", "node-a", "node-b")
    assert not missing_facts(degraded(cluster).message, *pods_and_nodes, "p-train-default-0", "0 of 1", "4 IPUs")
    assert quarantined in degraded(cluster).message
    assert degraded(cluster).reason == "IPUQuarantined"
    assert cluster.asked == 1
    cluster.elsewhere = 1
    cluster.rooms.clear()
    cluster.live()
    assert (job_status(cluster).moves, degraded(cluster).status) == (1, "False")
    assert cluster.resets == {(UID, partition_of(job), 1): 1}
    assert set(cluster.where().values()) == {"node-a", "node-b"}, "its nodes are fine"


def test_63_a_move_for_a_node_and_an_ipu_at_once_is_for_the_node() -> None:
    job = make_job(workers=2, finalizers=(), healthPolicy=MOVE)
    cluster = begin(job)
    cluster.bad["node-a"] = TAINTED
    cluster.bad_ipus[partition_of(job)] = ("IPU 10.1.5.10/3 is quarantined",)
    cluster.elsewhere = 1
    cluster.live()
    move = job_status(cluster).last_move
    assert move is not None
    assert (move.reason, move.nodes) == ("NodeFaulty", ("node-a", "node-b"))
    assert not missing_facts(move.message, TAINTED.what, "10.1.5.10/3")


def test_63_room_is_asked_for_though_another_instance_is_refused_its_partition() -> None:
    job = make_job(launcher=False, instances=2, healthPolicy=MOVE)
    bad = {partition_of(job): ("IPU 10.1.5.10/3 is quarantined",)}
    decided = decide(job, pods=workers(job, "Running"), entries=entries(job, 0), bad_ipus=bad)
    asked = [each for each in decided.actions if isinstance(each, QueryCapacity | TakePartitions)]
    assert isinstance(asked[0], QueryCapacity), "what comes after a refusal is not done"


def test_63_without_a_launcher_only_the_instance_concerned_moves() -> None:
    job = make_job(launcher=False, instances=3, finalizers=(), healthPolicy=MOVE)
    cluster = begin(job)
    cluster.nodes = ("node-a", "node-d", "node-c", "node-b", "node-e")
    others = {name: pod.metadata.uid for (_, name), pod in cluster.pods.items() if name != "train-worker-1"}
    cluster.bad["node-b"] = TAINTED
    cluster.live()
    status = job_status(cluster)
    assert (status.moves, status.attempt, status.instance_moves) == (1, 0, {"1": 1})
    assert {name: pod.metadata.uid for (_, name), pod in cluster.pods.items() if name in others} == others
    assert cluster.where(1) != {"train-worker-1": "node-b"}
    assert cluster.resets == {(UID, partition_of(job, 1), 1): 1}
    assert (status.launcher_status, degraded(cluster).reason) == ("Running", "IPUJobMoved")
    # another one a moment later is the same incident, and a restart afterwards is ahead of every instance
    cluster.bad["node-c"] = TAINTED
    cluster.live()
    assert (job_status(cluster).moves, job_status(cluster).instance_moves) == (1, {"1": 1, "2": 1})
    for key in list(cluster.pods):
        cluster.set_phase(key, "Failed")
    cluster.edit(UID, restart_policy=make_job(restartPolicy={"type": "OnFailure"}).spec.restart_policy)
    cluster.live()
    cluster.hour()
    cluster.live()
    labels = {name: pod.metadata.labels["muster.dev/attempt"] for (_, name), pod in cluster.pods.items()}
    assert labels == {"train-worker-0": "1", "train-worker-1": "2", "train-worker-2": "2"}


def test_63_an_instance_has_moved_once_it_works_again_though_the_others_always_do() -> None:
    cluster = FaultyCluster(nodes=("node-a", "node-b", "node-c", "node-d", "node-e"))
    cluster.add(make_job(launcher=False, instances=4, finalizers=(), healthPolicy=MOVE))
    cluster.live()
    cluster.bad["node-b"] = TAINTED
    cluster.turn(UID)
    assert (job_status(cluster).launcher_status, degraded(cluster).reason) == ("Running", "IPUJobMoving")
    assert job_status(cluster).last_message.startswith(PARTITION_NOT_READY)
    cluster.live()
    assert degraded(cluster).reason == "IPUJobMoved"
    assert not missing_facts(degraded(cluster).message, "node-b", "node-c", "train-worker-1")


def leaving(instances: int = 4) -> FaultyCluster:
    """Instance 1 moves; its pod hangs on its node until it is taken away by force, 130 s after that."""
    cluster = FaultyCluster(nodes=("node-a", "node-b", "node-c", "node-d", "node-e"), setup=JobSetup(moves_per_hour=2))
    policy = {**MOVE, "gracePeriodSeconds": 100}
    cluster.add(make_job(launcher=False, instances=instances, finalizers=(), healthPolicy=policy))
    cluster.live()
    cluster.bad["node-b"] = NOT_READY
    cluster.live(15)
    assert job_status(cluster).instance_moves == {"1": 1}
    return cluster


def test_63_an_instance_that_is_still_leaving_when_another_one_moves_is_not_hit_again() -> None:
    cluster = leaving()
    cluster.bad["node-c"] = TAINTED
    cluster.live(40)
    status = job_status(cluster)
    assert (status.moves, status.instance_moves, status.launcher_status) == (2, {"1": 1, "2": 1}, "Running")
    assert set(cluster.resets.values()) == {1}
    assert set(cluster.where().values()) == {"node-a", "node-d", "node-e"}


def test_51_a_template_that_changes_while_an_instance_leaves_a_dead_node_does_not_leave_it_there() -> None:
    cluster = leaving()
    workers_now = cluster.jobs[UID].spec.workers
    pods = template(terminationGracePeriodSeconds=2)
    cluster.edit(UID, workers=msgspec.structs.replace(workers_now, template=pods))
    cluster.live(60)
    status = job_status(cluster)
    assert (status.moves, status.attempt, status.launcher_status) == (1, 1, "Running")
    assert set(cluster.where().values()) <= {"node-a", "node-c", "node-d", "node-e"}
    assert {pod.metadata.labels["muster.dev/template"] for pod in cluster.pods.values()} == {digest(cluster.jobs[UID])}


@pytest.mark.parametrize("kind", ["Keep", "Move"])
def test_51_an_instance_on_a_dead_node_is_replaced_and_ends_no_job(kind: str) -> None:
    cluster = FaultyCluster()
    cluster.add(make_job(launcher=False, finalizers=(), healthPolicy={"onFault": kind}))
    cluster.live()
    workers_now = cluster.jobs[UID].spec.workers
    pods = template(terminationGracePeriodSeconds=2)
    cluster.edit(UID, workers=msgspec.structs.replace(workers_now, template=pods, strategy=ONE_MISSING))
    cluster.bad["node-a"] = NOT_READY
    cluster.live(40)
    assert job_status(cluster).launcher_status == "Running"
    assert cluster.where() == {"train-worker-0": "node-b"}


@pytest.mark.parametrize("bad", [NOT_READY, GONE])
def test_63_a_job_moves_off_a_node_that_is_lost_without_waiting_for_its_pods(bad: NodeProblem) -> None:
    cluster = begin()
    cluster.bad["node-a"] = bad
    cluster.live(24)
    assert (job_status(cluster).launcher_status, job_status(cluster).moves) == ("Running", 1)
    assert set(cluster.where().values()) == {"node-b", "node-c"}
    assert ("train-worker-0", 0) in cluster.grace


@pytest.mark.parametrize(("kind", "launcher_status", "restarts"), [("Never", "Failed", 0), ("OnFailure", "Running", 1)])
@pytest.mark.parametrize("bad", [NOT_READY, GONE])
def test_57_a_worker_that_is_lost_with_its_node_ends_the_attempt_by_policy(
    kind: str, launcher_status: str, restarts: int, bad: NodeProblem
) -> None:
    cluster = begin(make_job(workers=2, finalizers=(), restartPolicy={"type": kind}))
    cluster.bad["node-b"] = bad
    if bad is NOT_READY:
        cluster.live(2)
        assert job_status(cluster).launcher_status == "Running", "the cluster gives it time to come back"
        cluster.evict("node-b")
    cluster.live(24)
    status = job_status(cluster)
    assert (status.launcher_status, status.restart_count, status.moves) == (launcher_status, restarts, 0)
    message = next(each.message for each in status.conditions if each.type in ("Failed", "Restarting"))
    assert bad.what in message
    assert not missing_facts(message, "train-worker-1", "node-b")
    left = {name for (_, name), pod in cluster.pods.items() if not pod.metadata.deletion_timestamp}
    assert left == (set() if kind == "Never" else {"train-launcher", "train-worker-0", "train-worker-1"})


def lost_alone(bad: NodeProblem, dies_at: int = 0, **policy: Any) -> FaultyCluster:
    """Three instances without a launcher; that on node-b is lost with it, its kubelet never says that it has ended."""
    cluster = FaultyCluster(nodes=("node-a", "node-b", "node-c", "node-d"), setup=JobSetup(moves_per_hour=1))
    cluster.add(make_job(launcher=False, instances=3, finalizers=(), healthPolicy=policy or {"onFault": "Keep"}))
    cluster.live()
    cluster.dies_at = dies_at and cluster.writes + dies_at
    cluster.bad["node-b"] = bad
    if bad is NOT_READY:
        cluster.evict("node-b")
    cluster.live(24)
    return cluster


@pytest.mark.parametrize("bad", [NOT_READY, GONE])
def test_57_a_lost_instance_restarts_alone_on_a_reset_partition(
    bad: NodeProblem,
) -> None:
    cluster = lost_alone(bad)
    status = job_status(cluster)
    assert (status.launcher_status, status.moves, status.instance_moves) == ("Running", 1, {"1": 1})
    assert (status.restart_count, status.attempt) == (0, 0)
    assert cluster.where() == {"train-worker-0": "node-a", "train-worker-1": "node-c", "train-worker-2": "node-c"}
    assert cluster.resets == {(UID, partition_of(cluster.jobs[UID], 1), 1): 1}
    assert cluster.grace == [("train-worker-1", 0)], "nothing but what is lost goes"
    assert (degraded(cluster).status, degraded(cluster).reason) == ("False", "IPUJobMoved")
    assert bad.what in degraded(cluster).message
    assert not missing_facts(degraded(cluster).message, "train-worker-1", "node-b")


@pytest.mark.parametrize("launcher", [True, False])
def test_57_a_pod_that_ended_during_deletion_on_a_lost_node_is_recreated(launcher: bool) -> None:
    """Nothing is lost with it, and its kubelet will not take it away."""
    cluster = begin(make_job(launcher=launcher, workers=2, finalizers=(), healthPolicy={"onFault": "Keep"}))
    cluster.evict("node-b", grace_s=5)
    cluster.set_phase(("default", "train-worker-1"), "Failed")
    cluster.bad["node-b"] = NOT_READY
    cluster.live(6)
    assert cluster.where()["train-worker-1"] == "node-b", "it has its time"
    cluster.live(12)
    assert cluster.where()["train-worker-1"] != "node-b"
    assert (job_status(cluster).launcher_status, job_status(cluster).attempt, job_status(cluster).moves) == (
        "Running",
        0,
        0,
    )


def test_51_an_extra_instance_that_is_lost_holds_up_no_rollout() -> None:
    cluster = FaultyCluster(nodes=("node-a", "node-b", "node-c", "node-d"))
    surge = Strategy(rolling_update=RollingUpdate(max_surge=1, max_unavailable=0))
    cluster.add(make_job(launcher=False, instances=2, finalizers=(), healthPolicy={"onFault": "Keep"}))
    workers_now = cluster.jobs[UID].spec.workers
    cluster.live()
    changed = msgspec.structs.replace(workers_now, template=template(terminationGracePeriodSeconds=2), strategy=surge)
    cluster.edit(UID, workers=changed)
    while cluster.where(2) != {"train-worker-2": "node-c"}:
        cluster.turn(UID)
        cluster.settle_partitions()
        cluster.place()
    cluster.bad["node-c"] = NOT_READY
    cluster.evict("node-c")
    cluster.live(40)
    assert {pod.metadata.labels["muster.dev/template"] for pod in cluster.pods.values()} == {digest(cluster.jobs[UID])}
    assert (job_status(cluster).launcher_status, sorted(cluster.where())) == (
        "Running",
        ["train-worker-0", "train-worker-1"],
    )
    assert cluster.resets[UID, partition_of(cluster.jobs[UID], 2), 1] == 1, "before it stood in again"


def test_57_a_tainted_instance_beside_a_lost_one_stays() -> None:
    cluster = FaultyCluster(nodes=("node-a", "node-b", "node-c", "node-d"))
    cluster.add(make_job(launcher=False, instances=3, finalizers=(), healthPolicy={"onFault": "Keep"}))
    cluster.live()
    cluster.bad |= {"node-a": TAINTED, "node-b": NOT_READY}
    cluster.evict("node-b")
    cluster.live(24)
    assert job_status(cluster).instance_moves == {"1": 1}
    assert cluster.where(0, 2) == {"train-worker-0": "node-a", "train-worker-2": "node-c"}
    assert (degraded(cluster).status, degraded(cluster).reason) == ("True", "NodeFaulty")


def test_57_instances_that_are_lost_again_and_again_are_bounded_as_moves_are() -> None:
    cluster = lost_alone(GONE)
    cluster.bad["node-c"] = GONE  # two of them are there by now
    cluster.live(24)
    assert job_status(cluster).instance_moves == {"1": 1}
    next_move_at = rfc3339_whole(seconds(job_status(cluster).move_starts[0]) + HOUR_S)
    assert not missing_facts(degraded(cluster).message, next_move_at, "1")
    cluster.hour()
    cluster.live(24)
    assert (job_status(cluster).moves, job_status(cluster).instance_moves) == (2, {"1": 2, "2": 1})
    assert job_status(cluster).launcher_status == "Running"


def test_59_a_crash_at_any_point_restarts_a_lost_instance_once() -> None:
    def look(cluster: FaultyCluster) -> object:
        return cluster.where(), cluster.resets, job_status(cluster).moves, job_status(cluster).launcher_status

    expected = look(lost_alone(NOT_READY))
    for point in range(1, 8):
        assert look(lost_alone(NOT_READY, dies_at=point)) == expected, point


def test_57_an_instance_that_has_moved_before_is_lost_once() -> None:
    """Its pod's attempt is ahead of the job's, and it hangs on its node beyond the beginning of the next one."""
    restarts = {"type": "OnFailure", "backOffLimit": 6}
    cluster = begin(make_job(launcher=False, finalizers=(), healthPolicy=MOVE, restartPolicy=restarts))
    cluster.bad["node-a"] = TAINTED
    cluster.live()
    assert job_status(cluster).instance_moves == {"0": 1}
    cluster.edit(UID, health_policy=make_job(healthPolicy={"onFault": "Keep"}).spec.health_policy)
    cluster.bad["node-b"] = NOT_READY
    cluster.evict("node-b", grace_s=300)
    cluster.live(80)
    status = job_status(cluster)
    assert (status.launcher_status, status.restart_count) == ("Running", 1)
    assert cluster.where() == {"train-worker-0": "node-c"}


@pytest.mark.parametrize("end", ["deleted", "suspended", "failed"])
@pytest.mark.parametrize("bad", [NOT_READY, GONE])
def test_57_a_dead_node_holds_up_no_job_that_is_given_up(bad: NodeProblem, end: str) -> None:
    cluster = begin(make_job(workers=2, finalizers=(), cleanPodPolicy="All"))
    cluster.bad["node-b"] = bad
    cluster.evict("node-b", grace_s=30)
    if end == "deleted":
        cluster.delete(UID)
    elif end == "suspended":
        cluster.edit(UID, suspend=True)
    cluster.live(2)
    job = cluster.jobs.get(UID)
    if bad is NOT_READY:
        assert job is not None
        again_s = plan(job, cluster.snapshot(job, {}, {}), cluster.setup).again_s
        assert again_s is not None
        assert again_s <= 60
    cluster.live(16)
    assert (cluster.pods, cluster.tracker) == ({}, {})
    assert (UID in cluster.jobs) == (end != "deleted")


def test_63_a_tolerated_taint_is_no_fault() -> None:
    job = make_job(workers=2, finalizers=(), healthPolicy={"onFault": "Move", "tolerateFaulty": True})
    cluster = begin(job)
    cluster.bad["node-a"] = TAINTED
    cluster.live()
    assert job_status(cluster).moves == 0
    assert not [each for each in job_status(cluster).conditions if each.type == "HealthDegraded"]


def test_63_a_job_that_has_succeeded_does_not_move() -> None:
    cluster = begin()
    cluster.set_phase(("default", "train-launcher"), "Succeeded")
    cluster.bad["node-a"] = TAINTED
    cluster.live()
    assert (job_status(cluster).launcher_status, job_status(cluster).moves) == ("Completed", 0)


@pytest.mark.parametrize("launcher", [True, False])
def test_59_wherever_the_operator_ends_during_a_move_the_end_is_the_same(launcher: bool) -> None:
    def live(dies_at: int) -> tuple[object, int, int]:
        job = make_job(launcher=launcher, instances=2, finalizers=(), healthPolicy=MOVE)
        cluster = begin(job)
        before = cluster.writes
        cluster.dies_at = dies_at and before + dies_at
        cluster.bad["node-b"] = TAINTED
        cluster.live(10)
        middle = cluster.writes
        cluster.bad_ipus[partition_of(job)] = ("IPU 10.1.5.10/3 is quarantined",)
        cluster.now += 120
        cluster.live(10)
        status = job_status(cluster)
        seen = (
            cluster.where(),
            status.launcher_status,
            (status.moves, status.attempt, status.instance_moves, status.restart_count),
            [(each.type, each.status, each.reason) for each in status.conditions],
            sorted((name, entry.state, entry.attempt) for name, entry in cluster.tracker.items()),
            sorted(cluster.resets.items()),
        )
        return seen, cluster.writes - before, middle - before

    expected, writes, middle = live(0)
    assert writes > middle > 4
    for point in range(1, writes + 1):
        assert live(point)[0] == expected, f"after write {point} of {writes}"

"""What cannot start together gives back what it holds, waits longer each time, and tries again (behaviour 49)."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import decide, entries, with_status, workers
from tests.operator.plan.job_factory import NOW, make_job, make_pod
from tests.operator.plan.simulated_cluster import OperatorDied, SimulatedCluster
from tests.wording.facts import missing_facts

from muster_kube.api.times import rfc3339_whole, seconds
from muster_operator.job import status
from muster_operator.job.snapshot import DeletePod, JobSetup, RecordEvent, TakePartitions
from muster_operator.job.status_types import GangHoldStatus, JobMove
from muster_operator.job.types import IPUJob

STEP_S = 20.0


class CrowdedCluster(SimulatedCluster):
    """Nodes have room for ``places`` pods; the scheduler takes the pods in the order in which they were made."""

    places: int = 100

    def step(self) -> None:
        for uid in list(self.jobs):
            try:
                self.turn(uid)
            except OperatorDied:
                self.turn(uid)
        self.settle_partitions()
        self.end_deletions()
        self.now += STEP_S
        bound = sum(pod.status.phase == "Running" for pod in self.pods.values())
        for key, pod in list(self.pods.items()):
            if pod.status.phase == "Pending" and bound < self.places:
                self.set_phase(key, "Running")
                bound += 1

    def running(self) -> list[str]:
        return [job.metadata.name for job in self.jobs.values() if status.has_condition(job.status, status.RUNNING)]


def half_started(*, dies_at: int = 0) -> CrowdedCluster:
    """Two jobs of two workers and a launcher each, on nodes with room for four pods: each has got two."""
    cluster = CrowdedCluster()
    cluster.places = 4
    for name in ("one", "other"):
        cluster.add(make_job(name, workers=2, finalizers=()))
    for _ in range(2):
        for uid in list(cluster.jobs):
            cluster.turn(uid)
        cluster.settle_partitions()
    for uid in list(cluster.jobs):
        cluster.turn(uid)
    for name in ("one", "other"):
        for number in range(2):
            cluster.set_phase(("default", f"{name}-worker-{number}"), "Running")
    cluster.dies_at = dies_at and cluster.writes + dies_at
    return cluster


def until_both_have_run(cluster: CrowdedCluster) -> None:
    ran = set()
    for _ in range(400):
        cluster.step()
        for name in cluster.running():
            ran.add(name)
            cluster.set_phase(("default", f"{name}-launcher"), "Succeeded")
        for job in list(cluster.jobs.values()):
            if status.is_finished(job.status):
                for key in [key for key in cluster.pods if key[1].startswith(f"{job.metadata.name}-")]:
                    del cluster.pods[key]
        if len(ran) == 2:
            return
    raise AssertionError(f"{ran} have run, after {cluster.now}")


def test_49_two_jobs_that_each_hold_half_do_not_wait_for_each_other_for_ever() -> None:
    cluster = half_started()
    assert cluster.running() == []
    until_both_have_run(cluster)


def test_49_nor_wherever_the_operator_ends() -> None:
    cluster = half_started()
    before = cluster.writes
    until_both_have_run(cluster)
    writes = cluster.writes - before
    assert writes > 10
    for point in range(1, writes + 1):
        until_both_have_run(half_started(dies_at=point))


def test_a_release_deletes_pods_first_and_reports_why_and_until_when() -> None:
    cluster = half_started()
    [uid, _] = cluster.jobs
    cluster.now += 290
    cluster.turn(uid)
    assert cluster.jobs[uid].status.given_back is None, "not before its time is over"
    cluster.now += 30
    cluster.turn(uid)
    said = cluster.jobs[uid].status
    assert said.given_back is not None
    assert said.given_back.count == 1
    assert said.given_back.until is not None
    assert not missing_facts(said.last_message, "300 s", said.given_back.until, "one-launcher")
    pending = next(each for each in said.conditions if each.type == status.PENDING)
    assert (pending.status, pending.reason, pending.message) == ("True", "GaveBack", said.last_message)
    cluster.end_deletions()
    cluster.turn(uid)
    cluster.settle_partitions()
    assert [name for name, entry in cluster.tracker.items() if entry.job == uid] == []
    cluster.turn(uid)
    assert [name for name, entry in cluster.tracker.items() if entry.job == uid] == [], "it waits"


def test_the_back_off_grows_and_is_forgotten_once_the_job_runs() -> None:
    cluster = CrowdedCluster()
    cluster.places = 0
    job = make_job(finalizers=())
    cluster.add(job)
    uid, waits = job.metadata.uid, list[float]()
    for _ in range(400):
        cluster.step()
        given_back = cluster.jobs[uid].status.given_back
        if given_back is not None and given_back.until and given_back.count > len(waits):
            waits.append(seconds(given_back.until) - cluster.now)
        if len(waits) == 3:
            break
    assert waits[0] < 95 < waits[1] < 190 < waits[2] < 400
    cluster.places = 9
    for _ in range(40):
        cluster.step()
    assert cluster.running() == ["train"]
    assert cluster.jobs[uid].status.given_back is None


def test_a_leader_whose_clock_was_ahead_makes_nobody_wait_for_it() -> None:
    cluster = half_started()
    cluster.now += 7200
    for _ in range(3):
        for uid in list(cluster.jobs):
            cluster.turn(uid)
        cluster.end_deletions()
        cluster.settle_partitions()
    assert not cluster.tracker, "all is released, as if it had been held for two hours"
    cluster.now -= 7200  # a leader with the right time
    begun = cluster.now
    until_both_have_run(cluster)
    assert cluster.now - begun < 1800


def test_an_edit_ends_the_wait() -> None:
    cluster = CrowdedCluster()
    cluster.places = 0
    job = make_job(launcher=False, finalizers=())
    cluster.add(job)
    uid = job.metadata.uid
    while not cluster.jobs[uid].status.given_back:
        cluster.step()
    for _ in range(2):
        cluster.turn(uid)
        cluster.end_deletions()
        cluster.settle_partitions()
    assert not cluster.tracker
    cluster.edit(uid, active_deadline_seconds=5000)
    cluster.turn(uid)
    assert list(cluster.tracker) == ["p-train-default-0"]


def test_an_edit_ends_the_wait_while_the_release_is_in_progress() -> None:
    cluster = CrowdedCluster()
    cluster.places = 0
    job = make_job(launcher=False, finalizers=())
    cluster.add(job)
    uid = job.metadata.uid
    while not cluster.jobs[uid].status.given_back:
        cluster.step()
    cluster.edit(uid, active_deadline_seconds=5000)
    cluster.turn(uid)
    assert [entry.state for entry in cluster.tracker.values()] == ["deleting"]
    cluster.settle_partitions()
    assert not cluster.tracker
    cluster.turn(uid)
    assert list(cluster.tracker) == ["p-train-default-0"]


def waiting_instance(**spec: Any) -> tuple[IPUJob, dict[str, Any]]:
    """Instance 0 works, the pod of instance 1 has waited for a node for 400 s."""
    job = make_job(launcher=False, instances=2, **spec)
    found = workers(job, "Running")
    at = rfc3339_whole(NOW - 400)
    found |= {"train-worker-1": make_pod(job, "train-worker-1", "Pending")}
    seen: dict[str, Any] = {"pods": _unscheduled(found, at), "entries": entries(job, 0, 1, since=at)}
    return with_status(job, decide(job, now=NOW - 400, **seen)), seen


def _unscheduled(found: dict[str, Any], at: str) -> dict[str, Any]:
    pod = found["train-worker-1"]
    metadata = msgspec.structs.replace(pod.metadata, creation_timestamp=at)
    spec = msgspec.structs.replace(pod.spec, node_name="")
    return found | {"train-worker-1": msgspec.structs.replace(pod, metadata=metadata, spec=spec)}


def test_without_a_launcher_only_the_instance_that_waits_gives_back() -> None:
    job, seen = waiting_instance()
    decided = decide(job, **seen)
    assert decided.status is not None
    assert decided.status.given_back is not None
    assert decided.status.given_back.instances == (1,)
    assert not missing_facts(decided.status.last_message, "instance 1")
    [tell] = decided.actions
    assert isinstance(tell, RecordEvent)
    assert tell.reason == "GaveBack"
    after = decide(with_status(job, decided), **seen)
    assert [each for each in after.actions if not isinstance(each, RecordEvent)] == [
        DeletePod("train-worker-1", "pod-train-worker-1")
    ]
    gone = decide(with_status(job, decided), pods=workers(job, "Running"), entries=entries(job, 0))
    assert not any(isinstance(each, TakePartitions) for each in gone.actions)
    assert gone.again_s is not None
    assert gone.status is None or gone.status.launcher_status == "Pending"


@pytest.mark.parametrize("timeout_s", [0.0, 500.0])
def test_not_before_the_time_that_is_set_and_never_with_0(timeout_s: float) -> None:
    job, seen = waiting_instance()
    decided = decide(job, JobSetup(hold_timeout_s=timeout_s), **seen)
    assert decided.status is None or decided.status.given_back is None
    assert (decided.again_s is None) == (timeout_s == 0)


def test_a_running_job_keeps_its_partitions_while_a_lost_worker_is_recreated() -> None:
    job = make_job(workers=2)
    pods = {name: make_pod(job, name, "Running") for name in ("train-worker-0", "train-launcher")}
    seen: dict[str, Any] = {"pods": pods, "entries": entries(job, 0, since=rfc3339_whole(NOW - 9000))}
    full = pods | {"train-worker-1": make_pod(job, "train-worker-1", labels={"muster.dev/instance": "0"})}
    job = with_status(job, decide(job, pods=full, entries=seen["entries"], now=NOW - 5000))
    assert job.status.launcher_status == "Running"
    decided = decide(job, **seen)
    assert decided.status is None or decided.status.given_back is None


def waiting_for_room() -> tuple[SimulatedCluster, str]:
    """Instance 0 works, there has been no room for instance 1 for longer than anything may be held."""
    cluster = SimulatedCluster(room=1)
    job = make_job(launcher=False, instances=2, finalizers=())
    cluster.add(job)
    cluster.go_well(6)
    cluster.now += 400
    assert [name for _, name in cluster.pods] == ["train-worker-0"]
    assert not status.has_condition(cluster.jobs[job.metadata.uid].status, status.RUNNING)
    return cluster, job.metadata.uid


def test_28_a_pod_that_is_deleted_is_made_again_though_another_instance_has_long_waited() -> None:
    cluster, uid = waiting_for_room()
    del cluster.pods["default", "train-worker-0"]
    cluster.turn(uid)
    assert (cluster.jobs[uid].status.given_back, list(cluster.pods)) == (None, [("default", "train-worker-0")])


def test_63_an_instance_moves_within_its_partition_though_another_one_has_long_waited() -> None:
    cluster, uid = waiting_for_room()
    job = cluster.jobs[uid]
    moved = msgspec.structs.replace(job.status, instance_moves={"0": 1}, last_move=JobMove(instances=(0,)))
    cluster.jobs[uid] = msgspec.structs.replace(job, status=moved)
    cluster.go_well(4)
    assert cluster.jobs[uid].status.given_back is None
    assert {pod.metadata.labels["muster.dev/attempt"] for pod in cluster.pods.values()} == {"1"}


def test_47_a_scale_up_requests_a_partition_before_a_release() -> None:
    """The images of a gang may take longer to come than anything may be held."""
    cluster = SimulatedCluster()
    job = make_job(finalizers=())
    cluster.add(job)
    uid = job.metadata.uid
    for _ in range(3):
        cluster.turn(uid)
        cluster.settle_partitions()
    for key, pod in cluster.pods.items():
        cluster.pods[key] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="node1"))
    cluster.now += 400
    cluster.edit(uid, job_instances=2)
    cluster.turn(uid)
    assert cluster.jobs[uid].status.given_back is None
    assert list(cluster.tracker) == ["p-train-default-0", "p-train-default-1"]


@pytest.mark.parametrize("refused", [{}, {("Pod", "train-worker-1"): "exceeded quota"}])
def test_a_pod_that_the_api_server_does_not_take_is_waited_for_no_longer(refused: dict[tuple[str, str], str]) -> None:
    job = make_job(launcher=False, instances=2)
    seen: dict[str, Any] = {
        "pods": workers(job, "Running"),
        "entries": entries(job, 0, 1, since=rfc3339_whole(NOW - 400)),
        "refused": refused,
    }
    job = with_status(job, decide(job, now=NOW - 400, **seen))
    decided = decide(job, **seen)
    given_back = decided.status.given_back if decided.status is not None else None
    assert (given_back.instances if given_back is not None else None) == ((1,) if refused else None)


def test_the_back_off_is_forgotten_though_the_last_pod_that_starts_changes_nothing_else() -> None:
    """Instance 0 works, so the job runs; only then instance 1 gets the node that it had waited for."""
    waits, seen = waiting_instance()
    assert waits.status.launcher_status == "Running"
    given_back = GangHoldStatus(count=1, message="gave the partition of instance 1 back")
    waits = msgspec.structs.replace(waits, status=msgspec.structs.replace(waits.status, given_back=given_back))
    assert decide(waits, **seen, setup=JobSetup(hold_timeout_s=0.0)).status is None, "it still waits"
    bound = seen | {"pods": seen["pods"] | {"train-worker-1": make_pod(waits, "train-worker-1", "Pending")}}
    decided = decide(waits, **bound)
    assert decided.status is not None
    assert decided.status.given_back is None
    assert decide(with_status(waits, decided), **bound).status is None

"""The wording of the operator's messages to the owner of a job, each message once. Other tests assert only facts."""

import msgspec
from tests.operator.admission.specs import least
from tests.operator.plan.decisions import decide, entries, last_message, launcher, running_snapshot, workers
from tests.operator.plan.faulty_cluster import TAINTED, FaultyCluster
from tests.operator.plan.job_factory import NOW, ended_container, make_entry, make_job, make_pod, partition_of
from tests.operator.plan.preflight_cluster import PreFlightCluster

from muster_kube.api.times import rfc3339_whole
from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.validation import SpecLimits, review_spec
from muster_operator.job.snapshot import JobSetup, NodeCapacity, RecordEvent
from muster_operator.job.status import DONE, NOT_READY, PENDING, RECONCILED, RUNNING, StatusUpdate, compose_status

UID = "uid-default-train"


def moved_or_kept(on_fault: str, setup: JobSetup | None = None) -> str:
    """The condition HealthDegraded of a job of two workers, one of whose nodes is tainted."""
    cluster = FaultyCluster(setup=setup or JobSetup())
    cluster.add(make_job(workers=2, finalizers=(), healthPolicy={"onFault": on_fault}))
    cluster.live()
    cluster.bad["node-b"] = TAINTED
    cluster.live()
    return next(each.message for each in cluster.jobs[UID].status.conditions if each.type == "HealthDegraded")


def refused(*, edited: bool = False, **fields: object) -> list[str]:
    """Of a new job, or of an edit of the least one."""
    before = None if not edited else {"metadata": {"name": "job"}, "spec": apply_defaults(least()).spec}
    job = {"metadata": {"name": "job"}, "spec": apply_defaults(least(**fields)).spec}
    return [str(error) for error in review_spec(job, before, SpecLimits()).errors]


def test_lines_that_scripts_of_the_original_operators_users_look_for() -> None:
    assert (RECONCILED, NOT_READY, DONE) == (
        "Successfully reconciled IPUJob",
        "partition not ready yet!",
        "All instances done",
    )


def test_conditions_in_the_words_of_the_published_transcript() -> None:
    job = make_job("ipujob-sample")
    found = {}
    for state in (PENDING, RUNNING):
        written = compose_status(job, StatusUpdate(state, "", desired=1), (), NOW)
        assert written is not None
        found |= {each.type: each.message for each in written.conditions if each.status == "True"}
    assert found == {
        PENDING: "IPUJob default/ipujob-sample is waiting for resources to be ready.",
        RUNNING: "IPUJob default/ipujob-sample is running.",
    }


def test_no_healthy_node() -> None:
    assert last_message(decide(make_job(), node_capacity=NodeCapacity(3, 0))) == (
        "waiting for a healthy node: 3 nodes match, 3 tainted by muster.dev/faulty"
    )


def test_a_name_that_others_have() -> None:
    job = make_job(workers=2)
    decided = decide(job, entries=entries(job, 0), foreign={("Role", "train-launcher"): "Deployment web"})
    assert last_message(decided) == (
        "Role train-launcher already exists and is not managed by this IPUJob (Deployment web)"
    )


def test_an_image_that_cannot_be_pulled() -> None:
    job = make_job(launcher=False)
    waiting = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    pods = {"train-worker-0": make_pod(job, "train-worker-0", "Pending", **waiting)}
    assert last_message(decide(job, entries=entries(job, 0), pods=pods)) == (
        "pod train-worker-0, container main: cannot pull its image"
    )


def test_a_restart_with_the_cause() -> None:
    job = make_job(restartPolicy={"type": "OnFailure"})
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 137)])
    assert last_message(decide(job, **seen)) == (
        "restart 1 of 3 at 2023-11-14T22:13:30Z: "
        "pod train-launcher on node node1 failed: container main ended with exit code 137 (SIGKILL)"
    )


def test_a_gang_that_does_not_start() -> None:
    job = make_job(launcher=False, instances=2)
    at = rfc3339_whole(NOW - 400)
    pending = make_pod(job, "train-worker-1", "Pending")
    pending = msgspec.structs.replace(
        pending,
        metadata=msgspec.structs.replace(pending.metadata, creation_timestamp=at),
        spec=msgspec.structs.replace(pending.spec, node_name=""),
    )
    decided = decide(
        job, pods=workers(job, "Running") | {"train-worker-1": pending}, entries=entries(job, 0, 1, since=at)
    )
    assert decided.status is not None
    assert decided.status.given_back is not None
    assert last_message(decided) == (
        "releases the partition of instance 1, held for 300 s without a start; "
        f"tries again at {decided.status.given_back.until}: pod train-worker-1 has not been scheduled"
    )


def test_bad_hardware_under_a_job_that_stays() -> None:
    assert moved_or_kept("Keep") == (
        "rank 1 (pod train-worker-1) is on node node-b: check pciebw: LowBandwidth; "
        "the job stays there (healthPolicy.onFault Keep)"
    )


def test_bad_hardware_under_a_job_that_may_not_move() -> None:
    assert moved_or_kept("Move", JobSetup(moves_per_hour=0)).endswith("; the job does not move: moves_per_hour is 0")


def test_a_move_from_where_to_where() -> None:
    assert moved_or_kept("Move").startswith("moved from node-b to node-a, node-c: rank 1 (pod train-worker-1) is on ")


def test_checks_before_the_launcher_starts() -> None:
    cluster = PreFlightCluster()
    cluster.says = {"node-b": ""}
    policy = {"preFlight": {"checks": ["ipulink", "pciebw"]}}
    cluster.add(make_job(workers=2, finalizers=(), healthPolicy=policy))
    cluster.live()
    assert cluster.jobs[UID].status.last_message == "pre-flight: waiting for ipulink, pciebw on node-b"


def test_a_reset_that_only_a_person_can_do() -> None:
    error = "[Poplar] recoverable_runtime_error: [Recovery action: FULL_RESET] CIUERRVR.IPUSOFTERR error on IPU 0"
    job = make_job()
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container(message=error)])
    seen["entries"] = {partition_of(job): make_entry(job, ipus="10.1.5.10/0,1 10.1.5.11/0,1")}
    events = [each for each in decide(job, **seen).actions if isinstance(each, RecordEvent)]
    assert [each.message for each in events if each.reason == "PoplarFullReset"] == [
        "pod train-launcher: Poplar requests FULL_RESET (CIUERRVR.IPUSOFTERR on IPU 0): "
        "power-cycle the IPU-Machine (10.1.5.10, 10.1.5.11)"
    ]


def test_a_size_that_no_partition_has() -> None:
    assert refused(ipusPerJobInstance="3") == [
        'spec.ipusPerJobInstance: "3": expected a power of two from "1" to "64", as a string'
    ]


def test_a_change_that_only_a_suspended_job_may_have() -> None:
    [error] = refused(edited=True, ipusPerJobInstance="8")
    assert error.endswith("only allowed while the job is suspended (spec.suspend: true)")

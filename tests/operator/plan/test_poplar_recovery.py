"""Behaviour 60: what Poplar asks for in the last words of a pod that failed."""

import msgspec
import pytest
from tests.operator.plan.faulty_cluster import FaultyCluster
from tests.operator.plan.job_factory import ended_container, make_entry, make_job, make_pod, partition_of
from tests.operator.plan.preflight_cluster import PreFlightCluster
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import JobSetup, RecordEvent, Snapshot
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import IPUJob
from muster_operator.plan.phase_table import plan

ERROR = "[Poplar][Load engine] recoverable_runtime_error: [Recovery action: {}] CIUERRVR.IPUSOFTERR error on IPU 0"
UID = "uid-default-train"


def fail(cluster: FaultyCluster, name: str, message: str, exit_code: int = 1) -> None:
    key = ("default", name)
    told = ended_container(exit_code=exit_code, message=message)
    failed = make_pod(cluster.jobs[UID], name, "Failed", containerStatuses=[told]).status
    cluster.pods[key] = msgspec.structs.replace(cluster.pods[key], status=failed)


def begin(job: IPUJob) -> FaultyCluster:
    cluster = FaultyCluster()
    cluster.add(job)
    cluster.live()
    return cluster


def job_status(cluster: FaultyCluster) -> IPUJobStatus:
    return cluster.jobs[UID].status


@pytest.mark.parametrize("action", ["IPU_RESET", "LINK_RESET", "PARTITION_RESET"])
def test_60_poplar_s_resets_restart_a_job_with_its_partition_reset_whatever_the_exit_code(action: str) -> None:
    job = make_job(finalizers=(), restartPolicy={"type": "ExitCode", "exitCodes": "137"})
    cluster = begin(job)
    fail(cluster, "train-launcher", ERROR.format(action))
    cluster.live(12)
    assert (job_status(cluster).launcher_status, job_status(cluster).restart_count) == ("Running", 1)
    assert cluster.resets == {(UID, partition_of(job), 1): 1}
    # the same exit code without such words stays permanent
    fail(cluster, "train-launcher", "ValueError: no such file")
    cluster.live()
    assert job_status(cluster).launcher_status == "Failed"


def test_60_a_job_that_moves_recovers_outside_back_off_limit() -> None:
    job = make_job(finalizers=(), healthPolicy={"onFault": "Move"})
    cluster = begin(job)
    fail(cluster, "train-launcher", ERROR.format("PARTITION_RESET"))
    cluster.live()
    status = job_status(cluster)
    assert (status.launcher_status, status.restart_count, status.moves, status.attempt) == ("Running", 0, 1, 1)
    assert cluster.resets == {(UID, partition_of(job), 1): 1}
    assert status.last_move is not None
    assert status.last_move.reason == "PoplarRecovery"
    poplar_says = ("PARTITION_RESET", "CIUERRVR.IPUSOFTERR", "IPU 0")
    assert not missing_facts(status.last_move.message, "train-launcher", "node-a", *poplar_says)


@pytest.mark.parametrize("policy", ["Keep", "Move"])
def test_60_a_full_reset_is_reported_with_the_machines_and_restarts_nothing(policy: str) -> None:
    job = make_job(healthPolicy={"onFault": policy}, restartPolicy={"type": "ExitCode", "exitCodes": "137"})
    told = ended_container(message=ERROR.format("FULL_RESET"))
    pods = {
        "train-worker-0": make_pod(job, "train-worker-0"),
        "train-launcher": make_pod(job, "train-launcher", "Failed", containerStatuses=[told]),
    }
    entry = make_entry(job, ipus="10.1.5.10/0,1 10.1.5.11/0,1")
    decided = plan(job, Snapshot(now=1.7e9, pods=pods, entries={partition_of(job): entry}), JobSetup())
    assert decided.status is not None
    assert (decided.status.launcher_status, decided.status.moves) == ("Failed", 0)
    [event] = [each for each in decided.actions if isinstance(each, RecordEvent) and each.reason == "PoplarFullReset"]
    poplar_says = ("FULL_RESET", "CIUERRVR.IPUSOFTERR", "IPU 0")
    assert not missing_facts(event.message, "train-launcher", *poplar_says, "10.1.5.10", "10.1.5.11")


def suspected(job: IPUJob | None = None, *, dies_at: int = 0, **says: str) -> PreFlightCluster:
    """Two workers on node-a and node-b ran, and the launcher has failed with FULL_RESET. says: what their agents
    find."""
    cluster = PreFlightCluster()
    cluster.says = {name.replace("_", "-"): verdict for name, verdict in says.items()}
    cluster.add(job or make_job(workers=2, finalizers=()))
    cluster.live()
    cluster.dies_at = dies_at and cluster.writes + dies_at
    fail(cluster, "train-launcher", ERROR.format("FULL_RESET"))
    cluster.live(2)
    return cluster


@pytest.mark.parametrize(("verdict", "type_"), [("FAIL", "Warning"), ("PASS", "Normal"), ("SKIP", "Normal")])
def test_60_agents_check_the_ipus_after_a_full_reset_and_the_result_is_reported(verdict: str, type_: str) -> None:
    cluster = suspected(node_b=verdict)
    asked = [request for node in ("node-a", "node-b") for request in cluster.requests[node].values()]
    assert [(each.checks, each.params, each.force) for each in asked] == [(("ipu",), {}, False)] * 2
    [told] = [each for each in cluster.told if each.reason == "FullResetChecked"]
    assert told.type == type_
    found = ("LowBandwidth", "3 GB/s") if verdict == "FAIL" else ("node-a", verdict)
    assert not missing_facts(told.message, "ipu", "node-b", *found)
    assert ("LowBandwidth" in told.message) == (verdict == "FAIL")
    assert job_status(cluster).launcher_status == "Failed"
    cluster.live(60)
    assert cluster.asked_nodes() == [], "it does not stand for ever"
    assert set(cluster.ran.values()) == {1}
    written = cluster.writes
    cluster.live()
    assert cluster.writes == written


def test_60_the_next_attempt_waits_for_no_agent_and_a_job_that_lies_on_asks_once_in_a_while() -> None:
    job = make_job(workers=2, finalizers=(), restartPolicy={"type": "OnFailure", "backOffLimit": 20})
    cluster = suspected(job, node_a="", node_b="")
    cluster.live(4)
    assert (job_status(cluster).launcher_status, job_status(cluster).restart_count) == ("Running", 1)
    ids = set()
    begun = cluster.now
    while cluster.now < begun + 250:
        ids |= {name for held in cluster.requests.values() for name in held}
        if "train-launcher" in cluster.where() and cluster.pods["default", "train-launcher"].status.phase == "Running":
            fail(cluster, "train-launcher", ERROR.format("FULL_RESET"))
        cluster.live(1)
    assert job_status(cluster).restart_count > 2
    assert len(ids) == 1


@pytest.mark.parametrize("end", ["deleted", "suspended"])
def test_60_requests_after_a_full_reset_are_withdrawn_with_the_job(end: str) -> None:
    job = make_job(workers=2, finalizers=(), restartPolicy={"type": "OnFailure"})
    cluster = suspected(job, node_a="", node_b="")
    assert cluster.asked_nodes() == ["node-a", "node-b"]
    if end == "deleted":
        cluster.delete(UID)
    else:
        cluster.edit(UID, suspend=True)
    cluster.live()
    assert cluster.asked_nodes() == []


def test_60_whenever_the_operator_dies_after_a_full_reset_each_agent_is_asked_once() -> None:
    job = make_job(workers=2, finalizers=(), restartPolicy={"type": "OnFailure"})
    for point in range(1, 12):
        cluster = suspected(job, dies_at=point)
        cluster.live(6)
        assert (job_status(cluster).launcher_status, job_status(cluster).restart_count) == ("Running", 1), point
        assert sorted(node for node, _ in cluster.ran) == ["node-a", "node-b"], point
        cluster.live(60)
        assert cluster.asked_nodes() == []


def test_60_a_reset_that_every_attempt_does_asks_no_agent() -> None:
    cluster = PreFlightCluster()
    cluster.add(make_job(workers=2, finalizers=(), restartPolicy={"type": "OnFailure"}))
    cluster.live()
    fail(cluster, "train-launcher", ERROR.format("PARTITION_RESET"))
    cluster.live()
    assert (cluster.asked_nodes(), job_status(cluster).suspected) == ([], None)

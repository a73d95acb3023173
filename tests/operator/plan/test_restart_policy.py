"""When a job runs again, and when it does not: policies, the limit, delays that the status remembers."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import (
    created_objects,
    decide,
    entries,
    last_message,
    launcher,
    running_snapshot,
    with_status,
    workers,
)
from tests.operator.plan.job_factory import NOW, ended_container, make_job, make_pod
from tests.operator.plan.simulated_cluster import SimulatedCluster
from tests.wording.facts import missing_facts

from muster_kube.api import times
from muster_operator.job import names, status
from muster_operator.job.snapshot import DeletePod, JobPlan, JobSetup, RecordEvent, TakePartitions
from muster_operator.job.types import IPUJob


def ended(job: IPUJob, exit_code: int = 1, **launcher_status: Any) -> JobPlan:
    """With its launcher's end."""
    seen = running_snapshot(job, "Running")
    phase = "Failed" if exit_code else "Succeeded"
    told = {"containerStatuses": [ended_container("main", exit_code)], **launcher_status}
    seen["pods"] |= launcher(job, phase, **told)
    return decide(job, **seen)


def restarts(decided: JobPlan) -> bool:
    assert decided.status is not None
    return decided.status.attempt == 1


def policy(kind: str, **more: Any) -> dict[str, Any]:
    return {"restartPolicy": {"type": kind, **more}}


@pytest.mark.parametrize("spec", [{}, policy("Never"), policy("OnFailure", backOffLimit=0)])
def test_38_a_job_that_is_not_to_restart_fails(spec: dict[str, Any]) -> None:
    decided = ended(make_job(**spec))
    assert decided.status is not None
    assert (decided.status.launcher_status, decided.status.restart_count) == ("Failed", 0)
    assert [type(each) for each in decided.actions] == [RecordEvent]


@pytest.mark.parametrize(
    ("kind", "exit_code", "again"),
    [("OnFailure", 1, True), ("OnFailure", 0, False), ("Always", 1, True), ("Always", 0, True)],
)
def test_39_40_each_policy_restarts_its_outcomes(kind: str, exit_code: int, again: bool) -> None:
    assert restarts(ended(make_job(**policy(kind)), exit_code)) is again


def test_39_the_last_failure_is_the_jobs_and_the_limit_is_named() -> None:
    job = make_job(**policy("OnFailure", backOffLimit=3))
    before = msgspec.structs.replace(job.status, restart_count=3)
    decided = ended(msgspec.structs.replace(job, status=before), 7)
    assert decided.status is not None
    assert (decided.status.launcher_status, decided.status.restart_count) == ("Failed", 3)
    assert not missing_facts(last_message(decided), "train-launcher", "node1", "main", "7", "3")
    assert decided.status.conditions[-1].reason == "BackoffLimitExceeded"


def test_40_always_ends_with_a_success_once_its_restarts_are_used_up() -> None:
    job = make_job(**policy("Always", backOffLimit=2))
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, restart_count=2))
    decided = ended(job, 0)
    assert decided.status is not None
    assert decided.status.launcher_status == "Completed"


@pytest.mark.parametrize(
    ("exit_code", "codes", "again"),
    [
        (1, None, False),
        (127, None, False),
        (128, None, True),
        (137, None, True),
        (255, None, True),
        (3, "1,3,128-255", True),
        (2, "1,3,128-255", False),
        (137, "1-9", False),
    ],
)
def test_41_exit_codes_choose(exit_code: int, codes: str | None, again: bool) -> None:
    job = make_job(**policy("ExitCode", **({} if codes is None else {"exitCodes": codes})))
    decided = ended(job, exit_code)
    assert restarts(decided) is again
    if not again:
        assert not missing_facts(last_message(decided), str(exit_code))


def test_41_codes_of_init_containers_count() -> None:
    job = make_job(**policy("ExitCode"))
    told = {"initContainerStatuses": [ended_container("wait-workers", 137)], "containerStatuses": []}
    assert restarts(ended(job, 1, **told))
    told["initContainerStatuses"] = [ended_container("wait-workers", 2)]
    assert not restarts(ended(job, 1, **told))


@pytest.mark.parametrize(
    ("told", "again"),
    [
        ({"containerStatuses": [ended_container("main", 137, reason="OOMKilled")]}, True),
        ({"reason": "Evicted", "message": "memory"}, True),
        ({"containerStatuses": [ended_container("main", 1)]}, False),
    ],
)
def test_41_57_a_lost_worker_restarts_launcher_and_workers(told: dict[str, Any], again: bool) -> None:
    job = make_job(workers=2, **policy("ExitCode"))
    seen = running_snapshot(job, "Running")
    seen["pods"]["train-worker-1"] = make_pod(job, "train-worker-1", "Failed", **told)
    decided = decide(job, **seen)
    assert restarts(decided) is again
    assert "pod train-worker-1" in last_message(decided)


def test_43_clean_pod_policy_all_makes_every_type_act_as_never() -> None:
    for kind in ("Always", "OnFailure", "ExitCode"):
        for code in (0, 1, 137):
            assert not restarts(ended(make_job(cleanPodPolicy="All", **policy(kind)), code))


def test_42_the_new_attempt_is_in_the_status_before_anything_is_done() -> None:
    job = make_job(**policy("OnFailure"))
    decided = ended(job, 137)
    after = decided.status
    assert after is not None
    assert [type(each) for each in decided.actions] == [RecordEvent]
    assert (after.attempt, after.restart_count, after.launcher_status) == (1, 1, "Pending")
    assert status.has_condition(after, status.RESTARTING)
    assert status.is_written_first(job.status, after)
    assert times.seconds(after.next_attempt_time or "") == NOW + 10
    assert not missing_facts(after.last_message, "1 of 3", "2023-11-14T22:13:30Z", "train-launcher", "137", "SIGKILL")


def restarting() -> tuple[IPUJob, dict[str, Any]]:
    """Its launcher has failed, its worker still runs."""
    job = make_job(**policy("OnFailure"))
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 1)])
    return with_status(job, decide(job, **seen)), seen


def test_42_running_pods_are_deleted_at_once_and_ended_ones_at_the_next_attempt() -> None:
    job, seen = restarting()
    decided = decide(job, **seen)
    assert [each for each in decided.actions if not isinstance(each, RecordEvent)] == [
        DeletePod("train-worker-0", "pod-train-worker-0")
    ]
    assert decided.status is None
    assert decided.again_s == 10
    seen["pods"] = launcher(job, "Failed")
    assert [type(each) for each in decide(job, **seen).actions] == [RecordEvent], "waits"
    decided = decide(job, now=NOW + 10, **seen)
    assert [each for each in decided.actions if not isinstance(each, RecordEvent)] == [
        DeletePod("train-launcher", "pod-train-launcher")
    ]


def test_42_then_partitions_are_reset_then_pods_are_made() -> None:
    job, seen = restarting()
    seen["pods"] = {}
    assert not decide(job, now=NOW + 9, **seen).actions[:-1], "nothing before its time"
    decided = decide(job, now=NOW + 10, **seen)
    assert decided.actions == (TakePartitions((0,), attempt=1, size=4, gcds=1, together=True),)
    assert decided.status is not None
    assert decided.status.next_attempt_time is None
    assert not status.has_condition(decided.status, status.RESTARTING)
    seen["entries"] = entries(job, 0, attempt=1)
    made = decide(with_status(job, decided), now=NOW + 10, **seen).actions
    assert {each.body["metadata"]["labels"][names.ATTEMPT] for each in made} == {"1"}  # type: ignore[union-attr]


def test_a_clock_that_was_set_back_does_not_hold_a_restart_for_ever() -> None:
    job, seen = restarting()
    seen["pods"] = {}
    assert isinstance(decide(job, now=NOW - 86400, **seen).actions[0], TakePartitions)


@pytest.mark.parametrize(("before", "delay_s"), [(0, 10), (1, 20), (2, 40), (5, 320), (6, 360), (10**9, 360)])
def test_39_each_restart_waits_twice_as_long_to_six_minutes(before: int, delay_s: int) -> None:
    job = make_job(**policy("OnFailure", backOffLimit=2**31 - 1))
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, restart_count=before))
    decided = ended(job)
    assert decided.status is not None
    assert times.seconds(decided.status.next_attempt_time or "") == NOW + delay_s


def test_without_a_launcher_a_worker_that_failed_ends_its_instance() -> None:
    job = make_job(launcher=False, instances=2, workers=2, **policy("OnFailure"))
    seen: dict[str, Any] = {
        "entries": entries(job, 0, 1),
        "pods": workers(job, "Failed", "Running", "Failed", "Running"),
    }
    assert restarts(decide(job, **seen))
    seen["pods"] = workers(job, "Failed", "Running", "Running", "Running")
    decided = decide(job, **seen)
    assert decided.status is not None
    assert decided.status.attempt == 0, "the other instance goes on"


def test_without_a_launcher_a_failed_instance_is_named_and_stays_with_never_while_another_runs() -> None:
    job = make_job(launcher=False, instances=2, **policy("Never"))
    pods = workers(job, "Failed", "Running")
    failed = names.worker_pod(job.metadata.name, 0)
    pods[failed] = make_pod(job, failed, "Failed", containerStatuses=[ended_container("main", 139)])
    decided = decide(job, entries=entries(job, 0, 1), pods=pods)
    assert not decided.actions
    assert not missing_facts(last_message(decided), failed, "main", "139", "SIGSEGV")
    del pods[failed]  # by a person
    assert created_objects(decide(job, entries=entries(job, 0, 1), pods=pods)) == [f"Pod {failed}"]


def test_of_workers_that_failed_at_once_the_first_is_named() -> None:
    job = make_job(launcher=False, workers=2, **policy("Never"))
    names_of = [names.worker_pod(job.metadata.name, index) for index in (0, 1)]
    ends = [[ended_container("main", code)] for code in (139, 134)]
    pods = {
        name: make_pod(job, name, "Failed", labels={names.INSTANCE: "0"}, containerStatuses=end)
        for name, end in zip(names_of, ends, strict=True)
    }
    decided = decide(job, entries=entries(job, 0), pods=pods)
    assert not missing_facts(last_message(decided), names_of[0], "139")
    assert "134" not in last_message(decided)


def test_a_storm_of_a_launcher_that_exits_at_once_ends() -> None:
    cluster = SimulatedCluster(setup=JobSetup(restart_delay_s=0.0))
    job = make_job(**policy("OnFailure", backOffLimit=1000))
    cluster.add(job)
    for _ in range(6000):
        cluster.turn(job.metadata.uid)
        cluster.settle_partitions()
        cluster.end_deletions()
        for key in list(cluster.pods):
            cluster.set_phase(key, "Failed" if key[1].endswith("-launcher") else "Running")
        if status.is_finished(cluster.jobs[job.metadata.uid].status):
            break
    found = cluster.jobs[job.metadata.uid].status
    assert (found.launcher_status, found.restart_count) == ("Failed", 1000)
    assert len(cluster.resets) == 1000

"""How a job runs, ends, is cleaned up, suspended and deleted."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import (
    actions_but_events,
    decide,
    entries,
    last_message,
    launcher,
    printed_columns,
    running_snapshot,
    with_status,
)
from tests.operator.plan.job_factory import (
    NOW,
    ended_container,
    make_entry,
    make_job,
    make_pod,
    partition_of,
)
from tests.wording.facts import missing_facts

from muster_operator.job import status
from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import (
    DeletePod,
    FreePartition,
    JobPlan,
    RecordEvent,
    RemoveFinalizer,
    TakePartitions,
)
from muster_operator.job.types import IPUJob


@pytest.mark.parametrize(
    ("launched", "launchers", "phases", "state"),
    [
        (True, "Pending", ("Running", "Running"), "Pending"),
        (True, "Running", ("Running", "Running"), "Running"),
        (False, None, ("Pending", "Pending"), "Pending"),
        (False, None, ("Running", "Pending"), "Running"),
        (False, None, ("Succeeded", "Running"), "Running"),
    ],
)
def test_36_a_job_runs_when_its_launcher_does_or_without_one_a_worker(
    launched: bool, launchers: str | None, phases: tuple[str, ...], state: str
) -> None:
    job = make_job(instances=2, launcher=launched)
    seen = running_snapshot(job, *phases)
    if launchers:
        seen["pods"] |= launcher(job, launchers)
    assert printed_columns(decide(job, **seen))[:3] == (state, 2, 2)


def test_37_a_job_completes_with_its_launcher() -> None:
    job = make_job()
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Succeeded")
    decided = decide(job, **seen)
    assert decided.actions == ()
    assert printed_columns(decided) == ("Completed", 0, 1, status.DONE)


def test_without_a_launcher_it_ends_with_the_last_worker() -> None:
    job = make_job(instances=2, launcher=False)
    assert printed_columns(decide(job, **running_snapshot(job, "Succeeded", "Running")))[0] == "Running"
    assert printed_columns(decide(job, **running_snapshot(job, "Failed", "Running")))[0] == "Running"
    assert printed_columns(decide(job, **running_snapshot(job, "Succeeded", "Succeeded"))) == (
        "Completed",
        0,
        2,
        status.DONE,
    )
    failed = decide(job, **running_snapshot(job, "Succeeded", "Failed"))
    assert printed_columns(failed)[0] == "Failed"
    assert "train-worker-1" in last_message(failed)


def test_a_launcher_that_fails_fails_the_job_and_names_the_cause() -> None:
    job = make_job()
    seen = running_snapshot(job, "Running")
    oom = [ended_container("main", 137, reason="OOMKilled")]
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 1)])
    seen["pods"]["train-worker-0"] = make_pod(job, "train-worker-0", "Failed", containerStatuses=oom)
    decided = decide(job, **seen)
    said = last_message(decided)
    launcher_says, worker_says = ("train-launcher", "node1", "main", "1"), ("train-worker-0", "137", "SIGKILL")
    assert not missing_facts(said, *launcher_says, *worker_says, "OOMKilled")
    assert decided.actions == (RecordEvent("Warning", "IPUJobFailed", said),)
    assert printed_columns(decided)[:3] == ("Failed", 0, 1)
    assert decided.status is not None
    assert said in decided.status.conditions[-1].message
    assert decided.status.workers_status.failed == 1


def test_a_worker_that_fails_under_a_launcher_fails_the_job() -> None:
    """mpirun may hang on it for ever."""
    job = make_job(workers=2)
    seen = running_snapshot(job, "Running")
    seen["pods"]["train-worker-1"] = make_pod(job, "train-worker-1", "Failed", reason="Evicted", message="memory")
    decided = decide(job, **seen)
    assert printed_columns(decided)[0] == "Failed"
    assert not missing_facts(last_message(decided), "train-worker-1", "node1", "Evicted", "memory")


def test_28_a_pod_that_is_being_deleted_ends_nothing() -> None:
    job = make_job()
    seen = running_snapshot(job, "Running")
    for name, phase in (("train-worker-0", "Failed"), ("train-launcher", "Succeeded")):
        pod = make_pod(job, name, phase)
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
        seen["pods"][name] = msgspec.structs.replace(pod, metadata=metadata)
    assert printed_columns(decide(job, **seen))[0] == "Pending"


def finished(**spec: Any) -> tuple[IPUJob, dict[str, Any]]:
    job = make_job(**spec)
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Succeeded")
    return with_status(job, decide(job, **seen)), seen


def test_37_a_finished_job_is_never_run_again() -> None:
    job, seen = finished()
    assert decide(job, **seen) == JobPlan()
    decided = decide(job, now=NOW + 1e6)  # all has gone, and whoever decides has just started
    assert decided.actions == ()
    assert printed_columns(decided)[::3] == ("Completed", status.DONE)


@pytest.mark.parametrize(
    ("policy", "removed"),
    [("None", []), ("Workers", ["train-worker-0"]), ("All", ["train-worker-0", "train-launcher"])],
)
def test_43_cleanup_by_policy(policy: str, removed: list[str]) -> None:
    job, seen = finished(cleanPodPolicy=policy)
    decided = decide(job, **seen)
    assert decided.actions == tuple(DeletePod(name, f"pod-{name}") for name in removed)
    seen["pods"] = {name: pod for name, pod in seen["pods"].items() if name not in removed}
    decided = decide(job, **seen)
    freed = (FreePartition("p-train-default-0"),) if policy == "All" else ()
    assert decided.actions == freed


@pytest.mark.parametrize("policy", ["None", "Workers", "All"])
def test_37_clean_up_changes_no_word_of_how_it_ended(policy: str) -> None:
    job = make_job(cleanPodPolicy=policy)
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 3)])
    job = with_status(job, decide(job, **seen))
    later = decide(job, now=NOW + 60).status
    assert later is not None, "its partition has gone"
    for field in ("conditions", "last_message", "launcher_status", "completion_time", "start_time"):
        assert getattr(later, field) == getattr(job.status, field)


def test_44_a_suspended_job_has_no_pods_and_then_no_partitions() -> None:
    job = make_job(suspend=True)
    seen = running_snapshot(job, "Running")
    decided = decide(job, **seen)
    assert [each for each in decided.actions if isinstance(each, DeletePod)] == [
        DeletePod("train-worker-0", "pod-train-worker-0"),
        DeletePod("train-launcher", "pod-train-launcher"),
    ]
    assert not [each for each in decided.actions if isinstance(each, FreePartition)]
    assert printed_columns(decided)[:3] == ("Pending", 0, 1)
    assert decided.status is not None
    assert status.has_condition(decided.status, status.SUSPENDED)
    decided = decide(with_status(job, decided), entries=seen["entries"], objects=seen["objects"])
    assert decided.actions == (FreePartition("p-train-default-0"),)


def test_44_a_suspended_job_says_until_when_it_holds_ipus() -> None:
    """By this a queue knows when their quota is free for another job."""
    job = make_job(suspend=True)
    seen = running_snapshot(job, "Running")
    held = decide(job, **seen).status
    assert held is not None
    assert held.ipu_partition_created
    released = decide(with_status(job, decide(job, **seen)), objects=seen["objects"]).status
    assert released is not None
    assert not released.ipu_partition_created


def test_44_a_job_that_was_never_begun_stays_suspended() -> None:
    decided = decide(make_job(suspend=True))
    assert actions_but_events(decided) == ()
    assert decided.status is not None
    assert decided.status.start_time is None


def test_44_a_resumed_job_starts_again() -> None:
    job = with_status(make_job(suspend=True), decide(make_job(suspend=True)))
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=False))
    decided = decide(job)
    assert [type(each) for each in decided.actions] == [TakePartitions, RecordEvent]
    assert printed_columns(decided)[0] == "Pending"


def test_44_a_partition_that_is_still_being_freed_is_waited_for() -> None:
    job = make_job()
    assert not decide(job, entries=entries(job, 0, state="deleting")).actions


def test_34_pods_then_partitions_then_the_finaliser() -> None:
    job = make_job(deleted=True, instances=2)
    seen = running_snapshot(job, "Running", "Running")
    decided = decide(job, **seen)
    assert {type(each) for each in decided.actions} == {DeletePod}
    assert len(decided.actions) == 3
    decided = decide(job, entries=seen["entries"])
    assert decided == JobPlan((FreePartition("p-train-default-0"), FreePartition("p-train-default-1")))
    assert decide(job) == JobPlan((RemoveFinalizer(),))
    assert decide(make_job(deleted=True, finalizers=())) == JobPlan()


def test_34_pods_and_partitions_on_their_way_out_are_waited_for() -> None:
    job = make_job(deleted=True)
    pod = make_pod(job, "train-worker-0")
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
    leaving = {"train-worker-0": msgspec.structs.replace(pod, metadata=metadata)}
    assert decide(job, pods=leaving, entries=entries(job, 0)) == JobPlan()
    assert decide(job, entries=entries(job, 0, state="deleting")) == JobPlan()


def test_34_why_it_cannot_go_is_shown() -> None:
    job = make_job(deleted=True)
    refusal = PartitionRefusal(why="Unreachable", message="10.0.0.1:8090 does not answer")
    decided = decide(job, entries=entries(job, 0), refusals={partition_of(job): refusal})
    assert decided.actions == (FreePartition("p-train-default-0"),)
    assert not missing_facts(last_message(decided), "p-train-default-0", refusal.message)
    again = decide(with_status(job, decided), entries=entries(job, 0), refusals={partition_of(job): refusal})
    assert again.status is None


@pytest.mark.parametrize("state", ["creating", "active"])
def test_35_a_partition_under_way_is_freed_as_well(state: str) -> None:
    job = make_job(deleted=True)
    assert decide(job, entries=entries(job, 0, state=state)).actions == (FreePartition("p-train-default-0"),)


def test_34_partitions_of_others_are_none_of_its_business() -> None:
    job = make_job(deleted=True)
    assert decide(job, entries={partition_of(job): make_entry(make_job("other"))}) == JobPlan((RemoveFinalizer(),))


def test_34_deletion_precedes_every_other_phase() -> None:
    cases: list[dict[str, Any]] = [{"suspend": True}, {"instances": 0}, {"cleanPodPolicy": "None"}]
    for spec in cases:
        job = make_job(deleted=True, **spec)
        assert decide(job) == JobPlan((RemoveFinalizer(),))

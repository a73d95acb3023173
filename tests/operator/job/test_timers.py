"""What happens to a job by time alone: deadline, session, ttl after its end."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import (
    actions_but_events,
    decide,
    entries,
    launcher,
    objects,
    running_snapshot,
    with_status,
    workers,
)
from tests.operator.plan.job_factory import NOW, ended_container, make_job, make_pod
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import DeleteJob, DeletePod, FreePartition, JobPlan, JobSetup, RecordEvent
from muster_operator.job.types import IPUJob


def begun(job: IPUJob) -> tuple[IPUJob, dict[str, Any]]:
    """It runs since NOW, launcher and worker."""
    seen: dict[str, Any] = {
        "entries": entries(job, 0),
        "objects": objects(job),
        "pods": workers(job, "Running") | launcher(job),
    }
    return with_status(job, decide(job, **seen)), seen


def test_45_a_job_that_is_over_its_deadline_fails_and_its_pods_are_ended() -> None:
    job, seen = begun(make_job(activeDeadlineSeconds=600, restartPolicy={"type": "OnFailure"}))
    early = decide(job, now=NOW + 599, **seen)
    assert (early.status, early.again_s) == (None, 1)
    late = decide(job, now=NOW + 600, **seen)
    assert late.status is not None
    assert late.status.launcher_status == "Failed"
    assert not missing_facts(late.status.last_message, "activeDeadlineSeconds", "600")
    assert (late.status.conditions[-1].type, late.status.conditions[-1].reason) == ("Failed", "DeadlineExceeded")
    after = decide(with_status(job, late), now=NOW + 600, **seen)
    assert {each.name for each in after.actions if isinstance(each, DeletePod)} == {"train-worker-0", "train-launcher"}


def test_45_no_restart_begins_after_the_deadline() -> None:
    job, seen = begun(make_job(activeDeadlineSeconds=600, restartPolicy={"type": "OnFailure"}))
    seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 1)])
    late = decide(job, now=NOW + 601, **seen)
    assert late.status is not None
    assert (late.status.launcher_status, late.status.attempt) == ("Failed", 0)
    assert not missing_facts(late.status.last_message, "train-launcher", "1")


def test_45_a_job_that_succeeded_before_its_deadline_was_checked_is_complete() -> None:
    job, seen = begun(make_job(activeDeadlineSeconds=600))
    seen["pods"] |= launcher(job, "Succeeded")
    late = decide(job, now=NOW + 6000, **seen)
    assert late.status is not None
    assert late.status.launcher_status == "Completed"


def test_45_a_job_is_deleted_its_ttl_after_its_end() -> None:
    job, seen = begun(make_job(ttlSecondsAfterFinished=60))
    seen["pods"] |= launcher(job, "Succeeded")
    decided = decide(job, now=NOW + 5, **seen)
    assert decided.status is not None
    assert not missing_facts(decided.status.conditions[-1].message, "60 s")
    job = with_status(job, decided)
    assert decide(job, now=NOW + 10, **seen) == JobPlan(again_s=55)
    assert decide(job, now=NOW + 65, **seen) == JobPlan((DeleteJob(),))


def session(ttl: int = 3600) -> tuple[IPUJob, dict[str, Any]]:
    return begun(make_job(launcher=False, interactive={"ttl": ttl}))


def test_46_a_session_ends_completed_and_leaves_nothing() -> None:
    job, seen = session()
    assert decide(job, **seen).again_s == 3300
    over = decide(job, now=NOW + 3600, **seen)
    assert over.status is not None
    assert over.status.launcher_status == "Completed"
    assert over.status.conditions[-1].reason == "SessionEnded"
    job = with_status(job, over)
    removed = decide(job, now=NOW + 3600, **seen)
    assert {each.name for each in removed.actions if isinstance(each, DeletePod)} == {
        "train-worker-0",
        "train-launcher",
    }
    seen["pods"] = {}
    assert decide(job, now=NOW + 3600, **seen).actions == (FreePartition("p-train-default-0"),)


def test_46_its_clock_is_in_the_status_and_starts_when_it_first_runs() -> None:
    waiting = make_job(launcher=False, interactive={"ttl": 3600})
    job = with_status(waiting, decide(waiting))
    assert job.status.first_running_time is None
    assert decide(job, now=NOW + 9000).status is None, "it waits for its partition, and has not begun"
    job, seen = session()
    later = decide(job, now=NOW + 1000, pods={}, entries=seen["entries"], objects=seen["objects"])
    assert later.status is not None
    assert later.status.first_running_time == job.status.first_running_time, "pods that come again reset nothing"


@pytest.mark.parametrize(("ttl", "from_s"), [(3600, 3300), (600, 540), (20, 18)])
def test_46_its_people_are_warned(ttl: int, from_s: int) -> None:
    job, seen = session(ttl)
    assert decide(job, now=NOW + from_s - 1, **seen).actions == ()
    first, again = decide(job, now=NOW + from_s, **seen), decide(job, now=NOW + ttl - 1, **seen)
    [warning] = first.actions
    assert isinstance(warning, RecordEvent)
    assert (warning.type, warning.reason) == ("Warning", "SessionEnds")
    assert again.actions == first.actions, "word for word: it is one Event"
    assert first.again_s == ttl - from_s


def test_43_a_failed_job_keeps_all_pods_under_none_and_stops_its_workers_under_workers() -> None:
    for clean, deleted in (("None", ()), ("Workers", (DeletePod("train-worker-0", "pod-train-worker-0"),))):
        job, seen = begun(make_job(cleanPodPolicy=clean))
        seen["pods"] |= launcher(job, "Failed", containerStatuses=[ended_container("main", 1)])
        decided = decide(with_status(job, decide(job, **seen)), **seen)
        assert decided.actions == deleted


def test_43_57_a_launcher_that_outlives_a_failed_worker_stays_under_none_and_is_stopped_under_workers() -> None:
    for clean, deleted in (("None", set()), ("Workers", {"train-launcher", "train-worker-0"})):
        job, seen = begun(make_job(cleanPodPolicy=clean))
        seen["pods"]["train-worker-0"] = make_pod(
            job, "train-worker-0", "Failed", containerStatuses=[ended_container("main", 1)]
        )
        seen["pods"] |= launcher(job, "Running")
        decided = decide(with_status(job, decide(job, **seen)), **seen)
        assert {each.name for each in decided.actions if isinstance(each, DeletePod)} == deleted


def test_43_partitions_can_be_freed_at_the_end() -> None:
    job, setup = make_job(), JobSetup(free_partitions_at_end=True)
    seen = running_snapshot(job, "Running")
    seen["pods"] |= launcher(job, "Succeeded")
    decided = decide(job, setup, **seen)
    assert decided.status is not None
    assert not missing_facts(decided.status.conditions[-1].message, "default/train")
    job = with_status(job, decided)
    assert decide(job, setup, **seen).actions == (DeletePod("train-worker-0", "pod-train-worker-0"),)
    seen["pods"] = launcher(job, "Succeeded")
    assert decide(job, setup, **seen).actions == (FreePartition("p-train-default-0"),)


def test_44_suspension_is_in_the_status_first_and_clears_the_clocks() -> None:
    job, seen = begun(make_job(launcher=False, interactive={"ttl": 3600}, activeDeadlineSeconds=9000))
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=True))
    decided = decide(job, **seen)
    assert decided.status is not None
    assert (decided.status.start_time, decided.status.first_running_time) == (None, None)


def test_44_resumed_before_it_came_to_rest_it_first_does() -> None:
    """Pods of before may not be what is wanted now."""
    job, seen = begun(make_job())
    suspended = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=True))
    job = msgspec.structs.replace(job, status=with_status(suspended, decide(suspended, **seen)).status)
    assert {type(each) for each in actions_but_events(decide(job, **seen))} == {DeletePod}
    seen["pods"] = {}
    assert actions_but_events(decide(job, **seen)) == (FreePartition("p-train-default-0"),)

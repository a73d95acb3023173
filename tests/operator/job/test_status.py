"""What a job's owner is told (behaviours 36, 37), as the originals' transcripts have it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.plan.job_factory import NOW, make_entry, make_job, make_pod
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import JobSetup
from muster_operator.job.status import (
    COMPLETE,
    FAILED,
    PENDING,
    RUNNING,
    SUSPENDED,
    StatusUpdate,
    compose_status,
    launcher_status,
)
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus, WorkersStatus
from muster_operator.job.types import IPUJob
from muster_operator.resources import pods

STATES = [PENDING, RUNNING, SUSPENDED, COMPLETE, FAILED]
CREATED, LATER = "2023-11-14T22:13:20Z", "2023-11-14T22:13:34Z"


def update(state: str, line: str = "", **fields: Any) -> StatusUpdate:
    return msgspec.convert({"state": state, "line": line, "desired": 1, **fields}, StatusUpdate)


def after(job: IPUJob, state: str, now: float, **fields: Any) -> IPUJob:
    """The job once it has been told; it must have been something new."""
    written = compose_status(job, update(state, **fields), (), now)
    assert written is not None
    return msgspec.structs.replace(job, status=written)


def conditions(job: IPUJob) -> dict[str, IPUJobCondition]:
    return {each.type: each for each in job.status.conditions}


def test_36_a_new_job_is_pending() -> None:
    job = after(make_job("ipujob-sample"), PENDING, NOW)
    assert [msgspec.structs.replace(each, message="") for each in job.status.conditions] == [
        IPUJobCondition(
            type="Pending",
            status="True",
            reason="IPUJobPending",
            observed_generation=1,
            last_update_time=CREATED,
            last_transition_time=CREATED,
        ),
    ]
    assert not missing_facts(conditions(job)["Pending"].message, "default/ipujob-sample")
    assert (job.status.launcher_status, job.status.start_time) == ("Pending", CREATED)


def test_36_running_appears_beside_pending_as_in_the_transcript() -> None:
    job = after(after(make_job("ipujob-sample"), PENDING, NOW), RUNNING, NOW + 14)
    assert [(each.type, each.status, each.reason) for each in job.status.conditions] == [
        ("Pending", "False", "IPUJobPending"),
        ("Running", "True", "IPUJobRunning"),
    ]
    assert not missing_facts(conditions(job)["Running"].message, "default/ipujob-sample")
    assert conditions(job)["Running"].last_transition_time == LATER
    assert (job.status.launcher_status, job.status.start_time) == ("Running", CREATED)


def test_36_nothing_is_written_when_nothing_has_changed() -> None:
    job = after(make_job(), RUNNING, NOW)
    assert compose_status(job, update(RUNNING), (), NOW + 1000) is None


def test_36_the_times_of_a_condition_change_only_with_it() -> None:
    job = after(after(make_job(), PENDING, NOW), PENDING, NOW + 14, line="another word")
    assert conditions(job)["Pending"].last_transition_time == CREATED
    assert conditions(job)["Pending"].last_update_time == CREATED
    assert job.status.last_reconcile_time == LATER
    failed = after(after(make_job(), FAILED, NOW, message="one"), FAILED, NOW + 14, message="two")
    assert conditions(failed)["Failed"].last_transition_time == CREATED
    assert conditions(failed)["Failed"].last_update_time == LATER


def test_36_a_new_generation_is_observed_and_moves_no_time() -> None:
    job = after(make_job(), RUNNING, NOW)
    newer = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, generation=2))
    newer = after(newer, RUNNING, NOW + 14)
    assert newer.status.observed_generation == 2
    assert [each.observed_generation for each in newer.status.conditions] == [2, 2]
    assert {each.last_update_time for each in newer.status.conditions} == {CREATED}


def test_37_completion_is_timed_once() -> None:
    job = after(after(make_job(), RUNNING, NOW), COMPLETE, NOW + 14)
    assert (job.status.launcher_status, job.status.completion_time) == ("Completed", LATER)
    assert conditions(job)["Running"].status == "False"
    job = after(job, COMPLETE, NOW + 1000, partitions=True)
    assert job.status.completion_time == LATER


def test_44_a_suspended_job_has_no_start_time_until_it_resumes() -> None:
    job = after(after(make_job(), RUNNING, NOW), SUSPENDED, NOW + 1)
    assert (job.status.start_time, job.status.launcher_status) == (None, "Pending")
    assert conditions(job)["Suspended"].reason == "IPUJobSuspended"
    job = after(job, PENDING, NOW + 14)
    assert job.status.start_time == LATER
    assert (conditions(job)["Suspended"].status, conditions(job)["Suspended"].reason) == ("False", "IPUJobResumed")


@given(st.lists(st.tuples(st.sampled_from(STATES), st.integers(1, 100)), max_size=8))
def test_launcher_status_follows_from_the_conditions_and_one_of_them_is_true(steps: list[tuple[str, int]]) -> None:
    job, now = make_job(), NOW
    for state, seconds in steps:
        now += seconds
        before = conditions(job)
        written = compose_status(job, update(state), (), now)
        if written is not None:
            job = msgspec.structs.replace(job, status=written)
        assert [each.type for each in job.status.conditions if each.status == "True"] == [state]
        assert job.status.launcher_status == launcher_status(job.status.conditions)
        for kind, each in conditions(job).items():
            moved = kind in before and before[kind].last_transition_time != each.last_transition_time
            assert not moved or before[kind].status != each.status


@pytest.mark.parametrize(
    ("true", "status"),
    [
        (set(), "Pending"),
        ({PENDING}, "Pending"),
        ({SUSPENDED}, "Pending"),
        ({RUNNING}, "Running"),
        ({COMPLETE}, "Completed"),
        ({FAILED}, "Failed"),
        ({FAILED, COMPLETE, RUNNING}, "Failed"),
    ],
)
def test_launcher_status_by_table(true: set[str], status: str) -> None:
    listed = [IPUJobCondition(type=kind, status="True" if kind in true else "False") for kind in STATES]
    assert launcher_status(listed) == status


def test_conditions_of_others_are_kept() -> None:
    other = IPUJobCondition(type="example.com/Admitted", status="True")
    job = make_job(status=IPUJobStatus(conditions=(other,)))
    assert after(job, PENDING, NOW).status.conditions[-1] == other


def test_workers_are_counted_as_a_batch_job_counts() -> None:
    job = make_job(instances=4)
    pods = [
        make_pod(job, f"train-worker-{number}", phase)
        for number, phase in enumerate(["Pending", "Running", "Succeeded", "Failed"])
    ]
    written = compose_status(job, update(RUNNING), pods, NOW)
    assert written is not None
    assert written.workers_status == WorkersStatus(active=2, succeeded=1, failed=1)
    over = compose_status(msgspec.structs.replace(job, status=written), update(COMPLETE), (), NOW)
    assert over is not None
    # cleaned away, but that is how they ended
    assert over.workers_status == WorkersStatus(active=0, succeeded=1, failed=1)


def test_the_selector_names_this_jobs_workers_only() -> None:
    job = after(make_job(), PENDING, NOW)
    assert job.status.selector == "muster.dev/ipujob-uid=uid-default-train,muster.dev/role=worker"


def test_50_the_selector_names_one_worker_of_each_instance() -> None:
    """An autoscaler takes the number of pods that match for the number of instances."""
    job = make_job(launcher=False, instances=2, workers=2)
    wanted = dict(each.split("=") for each in after(job, RUNNING, NOW).status.selector.split(","))
    found = [pods.build_worker(job, index, make_entry(job, index // 2), 0, JobSetup()) for index in range(4)]
    matching = [pod["metadata"]["name"] for pod in found if wanted.items() <= pod["metadata"]["labels"].items()]
    assert matching == ["train-worker-0", "train-worker-2"]


def test_long_lines_are_cut() -> None:
    job = after(make_job(), FAILED, NOW, line="x" * 5000, message="y" * 5000)
    assert len(job.status.last_message) == len(conditions(job)["Failed"].message) == 1024

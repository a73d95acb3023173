"""What `muster explain` says of an IPUJob, and of the jobs of a node."""

import argparse
from typing import Any

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_cli.commands.explain_ipujob import job_name
from muster_cli.report.job import JobFacts, format_history, job_history, list_jobs_on_node
from muster_kube.api.objects import Event, Pod
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_operator.job.types import IPUJob

DAY = "2027-01-15T"
NOW = seconds(f"{DAY}08:00:00Z")
SPEC = {
    "jobInstances": 1,
    "ipusPerJobInstance": "4",
    "workersPerJobInstance": "2",
    "launcher": {"command": ["mpirun"]},
    "workers": {"template": {}},
    "restartPolicy": {"type": "OnFailure", "backOffLimit": 3},
    "healthPolicy": {"onFault": "Move"},
}
MOVE: dict[str, Any] = {
    "startTime": f"{DAY}07:20:00Z",
    "attempt": 1,
    "nodes": ["n1"],
    "message": "worker-0 on n1: Xid79",
}


def job(*, made: str = "07:00:00", conditions: list[dict[str, str]] | None = None, **status: Any) -> IPUJob:
    body = {
        "metadata": {"name": "train", "namespace": "team", "uid": "u", "creationTimestamp": f"{DAY}{made}Z"},
        "spec": SPEC,
        "status": {"conditions": conditions or [], **status},
    }
    return msgspec.convert(body, type=IPUJob)


def condition(kind: str, at: str, message: str = "", reason: str = "R") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": f"{DAY}{at}Z"}


def event(reason: str, at: str, message: str, kind: str = "Warning") -> Event:
    involved = {"kind": "IPUJob", "name": "train", "uid": "u"}
    body = {"metadata": {}, "involvedObject": involved, "reason": reason, "message": message, "type": kind}
    return msgspec.convert(body | {"firstTimestamp": f"{DAY}{at}Z"}, type=Event)


def pod(name: str, node: str, phase: str = "Running", owner: str = "train") -> Pod:
    owners = [{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": owner, "uid": "u"}]
    metadata = {"name": name, "namespace": "team", "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}, type=Pod)


def words(known: JobFacts) -> list[str]:
    return [chapter.word for chapter in job_history(known, NOW).chapters]


def test_history_of_a_moved_job_is_in_order() -> None:
    moved = job(
        startTime=f"{DAY}07:00:01Z",
        firstRunningTime=f"{DAY}07:05:00Z",
        attempt=1,
        moves=1,
        lastMove=MOVE,
        conditions=[condition("Running", "07:22:00")],
    )
    events = [
        event("IPUJobMoved", "07:22:01", "runs on n2 now", "Normal"),
        event("IPUJobMoving", "07:20:01", "away from n1"),
        event("HealthDegraded", "07:19:59", "rank 0, worker-0, n1: Xid79"),
        event("NoHealthyNode", "07:01:00", "waits for a healthy node"),
    ]
    told = job_history(JobFacts(moved, events, [pod("train-worker-0", "n2")]), NOW)
    assert [chapter.word for chapter in told.chapters] == [
        "submitted", "accepted", "queued", "running", "fault", "moving", "running", "moved",
    ]  # fmt: skip
    assert told.state == "Running"
    assert not missing_facts(told.why, "attempt 2", "0 of 3")
    assert told.places == ("n2: worker-0 Running",)
    assert told.code == 0


def test_move_is_shown_from_the_status_after_events_expired() -> None:
    old = job(made="01:00:00", moves=1, lastMove=MOVE)
    told = job_history(JobFacts(old), NOW)
    assert told.chapters[-1].word == "moving"
    assert not missing_facts(told.chapters[-1].text, "n1", MOVE["message"])
    assert len(told.notes) == len(job_history(JobFacts(old, [event("Odd", "07:10:00", "x")]), NOW).notes) + 1


def test_a_restart_and_the_end_say_their_reasons() -> None:
    failed = job(
        restartCount=1,
        attempt=1,
        completionTime=f"{DAY}07:30:00Z",
        conditions=[condition("Failed", "07:30:00", "worker-1: container main: exit code 1", "BackoffLimitExceeded")],
    )
    restart = event("IPUJobRestarting", "07:10:00", "restart 1 of 3: worker-0 was OOMKilled")
    told = job_history(JobFacts(failed, [restart]), NOW)
    assert [chapter.word for chapter in told.chapters] == ["submitted", "restart", "failed"]
    why = "worker-1: container main: exit code 1"
    assert told.chapters[-1].text == f"BackoffLimitExceeded: {why}"
    assert told.state == "Failed"
    assert told.code == 2


def test_change_in_event_and_condition_is_shown_once() -> None:
    restarting = job(conditions=[condition("Restarting", "07:10:01", "restart 1 of 3 at …")])
    told = job_history(JobFacts(restarting, [event("IPUJobRestarting", "07:10:00", "restart 1 of 3: killed")]), NOW)
    assert [chapter.text for chapter in told.chapters if chapter.word == "restart"] == ["restart 1 of 3: killed"]
    assert told.code == 1


def test_bad_hardware_is_in_the_first_line_and_beside_the_pods() -> None:
    ill = job(conditions=[condition("Running", "07:05:00"), condition("HealthDegraded", "07:19:59", "rank 0: Xid79")])
    health = msgspec.convert(
        {"metadata": {"name": "n1"}, "status": {"verdict": "FAIL", "message": "off the bus"}}, type=NodeHealth
    )
    told = job_history(JobFacts(ill, [], [pod("train-worker-0", "n1")], {"n1": health}), NOW)
    assert not missing_facts(
        next(iter(format_history(told))), "team/train RUNNING", "attempt 1", "0 of 3", "rank 0: Xid79"
    )
    (place,) = told.places
    assert not missing_facts(place, "n1: worker-0 Running", f"FAIL: {health.status.message}")
    assert told.code == 1


def test_unknown_event_is_shown_with_its_reason() -> None:
    assert "Odd: x" in [
        chapter.text for chapter in job_history(JobFacts(job(), [event("Odd", "07:10:00", "x")]), NOW).chapters
    ]


def test_unreadable_objects_are_noted_and_the_rest_is_shown() -> None:
    blind = "not looked at: pods"
    told = job_history(JobFacts(job(), blind=(blind,)), NOW)
    assert told.notes[0] == blind
    assert words(JobFacts(job())) == ["submitted"]


def test_a_node_tells_of_the_jobs_that_run_there_and_that_left_it() -> None:
    left = job(lastMove=MOVE, moves=1)
    here, gone = list_jobs_on_node("n1", [left], [pod("other-worker-0", "n1", owner="other")])
    assert not missing_facts(here, "IPUJob team/other", "worker-0 Running")
    assert not missing_facts(gone, "IPUJob team/train", f"{DAY}07:20:00Z", MOVE["message"])
    assert list_jobs_on_node("n2", [left], []) == []


@pytest.mark.parametrize("text", ["", "a/b/c", "a/", "a/../b", "a b", "a\x1b"])
def test_a_name_that_no_job_can_have_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        job_name(text)


def test_waiting_job_shows_what_it_waits_for() -> None:
    waits = job(conditions=[condition("Pending", "07:00:01", "is waiting for resources")], lastMessage="0 free blocks")
    told = job_history(JobFacts(waits), NOW)
    assert told.why.endswith(": 0 free blocks")
    assert told.chapters[-1].text == "R: 0 free blocks"


def test_the_tainters_word_of_a_faulty_node_is_a_fault() -> None:
    assert words(JobFacts(job(), [event("NodeFaulty", "07:10:00", "node n1 is tainted")]))[-1] == "fault"


def test_two_faults_at_the_same_time_are_both_shown() -> None:
    events = [event("NodeFaulty", "07:10:00", "rank 0"), event("NodeGone", "07:10:01", "rank 1")]
    assert words(JobFacts(job(), events)) == ["submitted", "fault", "fault"]

"""Messages name a few of many things and count the rest: exactly as many as fit, and no 'and 0 more'."""

import re
from typing import Any

import msgspec
import pytest
from tests.operator.plan.decisions import entries
from tests.operator.plan.job_factory import NOW, ended_container, make_job, make_pod

from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import RequestAnswer
from muster_operator.job import names
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobSetup, NodeCapacity, Snapshot
from muster_operator.job.status_types import FullResetCheck, IPUJobStatus, PreFlightStatus
from muster_operator.plan import gang_hold, instance_restart, restart_policy, waiting_reason
from muster_operator.plan.hardware import degradation, full_reset, preflight
from muster_operator.plan.hardware.degradation import JobFault
from muster_operator.plan.job_state import JobState


def named(text: str, word: str) -> list[int]:
    """The numbers behind ``word``, in their order."""
    return [int(number) for number in re.findall(rf"\b{word}(\d+)\b", text)]


@pytest.mark.parametrize(("count", "shown", "rest"), [(1, 1, None), (4, 4, None), (5, 4, "1 more"), (9, 4, "5 more")])
def test_four_faults_are_named(count: int, shown: int, rest: str | None) -> None:
    text = degradation.describe_faults([JobFault("NodeFaulty", f"fault{n}", n, ()) for n in range(count)])
    assert named(text, "fault") == list(range(shown))
    assert rest in text if rest else "more" not in text


@pytest.mark.parametrize(("count", "shown", "rest"), [(1, 1, None), (3, 3, None), (4, 3, "1 more")])
def test_three_reasons_are_named(count: int, shown: int, rest: str | None) -> None:
    text = waiting_reason._join([f"reason{n}" for n in range(count)])
    assert named(text, "reason") == list(range(shown))
    assert rest in text if rest else "more" not in text


@pytest.mark.parametrize(
    ("tainted", "healthy", "avoided", "rest"), [(2, 1, 0, None), (2, 0, 0, "1 more"), (2, 0, 1, None), (0, 1, 0, None)]
)
def test_tainted_nodes_beyond_those_that_are_known_by_name_are_counted(
    tainted: int, healthy: int, avoided: int, rest: str | None
) -> None:
    places = NodeCapacity(3, healthy, avoided, tainted=tuple(f"node{n}" for n in range(tainted)))
    state = JobState(make_job(), Snapshot(now=NOW, node_capacity=places), JobSetup())
    text = waiting_reason._describe_tainted(state)
    assert named(text, "node") == list(range(tainted))
    assert rest in text if rest else "more" not in text


def asking(nodes: int, verdict: str = "", **setup: Any) -> JobState:
    """A job whose pre-flight checks wait for as many nodes, or have got this verdict of each."""
    job = make_job(workers=nodes, healthPolicy={"preFlight": {"checks": ["ipulink"]}})
    checked = PreFlightStatus(state="Checking", attempt=0, start_time=rfc3339_whole(NOW))
    job = msgspec.structs.replace(job, status=IPUJobStatus(pre_flight=checked))
    pods = {}
    for number in range(nodes):
        pod = make_pod(job, names.worker_pod("train", number), labels={names.INSTANCE: "0"})
        pods[pod.metadata.name] = msgspec.structs.replace(
            pod, spec=msgspec.structs.replace(pod.spec, node_name=f"node{number}")
        )
    [request] = preflight.request_ids(job)
    answers = {request: RequestAnswer(id=request, verdict=verdict)} if verdict else {}
    requests = {f"node{number}": answers for number in range(nodes)}
    snapshot = Snapshot(now=NOW, pods=pods, entries=entries(job, 0), requests=requests)
    return JobState(job, snapshot, JobSetup(**setup))


@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_three_nodes_that_are_waited_for_are_named(nodes: int) -> None:
    text = preflight.describe_checks(asking(nodes))
    assert named(text, "node") == (list(range(nodes)) if nodes <= 3 else [])
    assert ("3 of 4 nodes" in text) is (nodes > 3)


@pytest.mark.parametrize(("verdict", "state"), [("FAIL", "Failed"), ("UNKNOWN", "Passed"), ("PASS", "Passed")])
@pytest.mark.parametrize("nodes", [1, 3, 4, 9])
def test_three_nodes_of_a_result_are_named_and_eight_have_an_event(nodes: int, verdict: str, state: str) -> None:
    found = preflight.check_nodes(asking(nodes, verdict))
    assert found is not None
    assert found.status is not None
    assert found.status.pre_flight is not None
    text, bad = found.status.pre_flight.message, verdict != "PASS"
    assert named(text, "node") == (list(range(min(nodes, 3))) if bad else [])
    assert (f"{nodes - 3} more" in text) is (bad and nodes > 3)
    assert found.status.pre_flight.state == state
    assert len(found.actions) == (min(nodes, 8) if bad else 1)
    assert len(found.status.pre_flight.left) == (nodes if verdict == "FAIL" else 0)


@pytest.mark.parametrize(("nodes", "more"), [(1, False), (4, False), (5, True)])
def test_four_nodes_of_a_full_reset_are_named(nodes: int, more: bool) -> None:
    suspected = FullResetCheck(start_time=rfc3339_whole(NOW), nodes=tuple(f"node{n}" for n in range(nodes)))
    job = make_job(status=IPUJobStatus(suspected=suspected))
    [request] = full_reset.request_ids(job, NOW)
    requests = {node: {request: RequestAnswer(id=request, verdict="PASS")} for node in suspected.nodes}
    [event] = full_reset.report_answers(job, Snapshot(now=NOW, requests=requests))
    assert named(event.message, "node") == list(range(min(nodes, 4)))
    assert ("…" in event.message) is more
    late = {**requests, suspected.nodes[-1]: {}}
    assert full_reset.report_answers(job, Snapshot(now=NOW, requests=late)) == ()


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (8, 8), (9, 8)])
def test_eight_instances_that_give_back_are_named(count: int, shown: int) -> None:
    state = JobState(make_job(launcher=False, instances=count), Snapshot(now=NOW), JobSetup())
    decided = gang_hold._give_back(state, {number: f"reason{number}" for number in range(count)})
    assert decided.status is not None
    given_back = decided.status.given_back
    assert given_back is not None
    assert given_back.instances == tuple(range(count))
    assert [int(n) for n in re.findall(r"\b\d+\b", given_back.message.split(", held")[0])] == list(range(shown))
    assert ("…" in given_back.message) is (count > shown)
    assert named(given_back.message, "reason") == [0]


def test_of_several_instances_that_restart_the_first_one_is_the_last_message() -> None:
    job = make_job(launcher=False, instances=3, restartPolicy={"type": "OnFailure"})
    pods = {}
    for number in range(3):
        ended: dict[str, Any] = {"containerStatuses": [ended_container()]} if number else {}
        pod = make_pod(job, names.worker_pod("train", number), "Failed" if number else "Running", **ended)
        pods[pod.metadata.name] = pod
    state = JobState(job, Snapshot(now=NOW, pods=pods, entries=entries(job, 0, 1, 2)), JobSetup())
    decided = instance_restart.restart_instances(state)
    assert decided is not None
    assert decided.status is not None
    assert named(decided.status.last_message, "instance ") == [1]
    assert decided.status.restart_count == 2
    assert len(decided.actions) == 2


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (1, True), (2, False), (9, False), (10, True), (20, True), (21, False)]
)
def test_exit_codes_are_among_single_ones_and_ranges(code: int, again: bool) -> None:
    job = make_job(restartPolicy={"type": "ExitCode", "exitCodes": "1,10-20"})
    pod = make_pod(job, "train-worker-0", "Failed", containerStatuses=[ended_container(exit_code=code)])
    assert restart_policy.decide_restart(job, AttemptEnd(False, "", (pod,))).again is again

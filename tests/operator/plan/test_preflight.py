"""Pre-flight checks of one job: its launcher waits for them, and what fails is left."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from tests.operator.plan.faulty_cluster import TAINTED
from tests.operator.plan.job_factory import make_job
from tests.operator.plan.preflight_cluster import CANNOT_BE_ASKED, PreFlightCluster
from tests.wording.facts import missing_facts

from muster_kube.api.times import rfc3339_whole, seconds
from muster_operator.job.snapshot import CreateObject, JobSetup
from muster_operator.job.status_types import IPUJobStatus, PreFlightStatus
from muster_operator.job.types import IPUJob, RestartPolicy
from muster_operator.plan.hardware.preflight import AVOIDED_S
from muster_operator.plan.move import HOUR_S
from muster_operator.plan.phase_table import plan

UID = "uid-default-train"
LAUNCHER = ("default", "train-launcher")


def checked_job(*, workers: int = 2, on_fault: str = "Keep", **policy: Any) -> IPUJob:
    health = {"onFault": on_fault, "preFlight": {"checks": ["ipulink", "pciebw"], **policy}}
    return make_job(workers=workers, finalizers=(), healthPolicy=health)


def begin(
    job: IPUJob | None = None, *, live: int = 8, dies_at: int = 0, setup: JobSetup | None = None, **says: str
) -> PreFlightCluster:
    """Two workers on node-a and node-b, node-c free. says: verdicts of node_a, node_b, node_c."""
    cluster = PreFlightCluster(dies_at=dies_at, setup=setup or JobSetup())
    cluster.says = {name.replace("_", "-"): verdict for name, verdict in says.items()}
    cluster.add(job or checked_job())
    cluster.live(live)
    return cluster


def status(cluster: PreFlightCluster) -> IPUJobStatus:
    return cluster.jobs[UID].status


def checked(cluster: PreFlightCluster) -> PreFlightStatus:
    found = status(cluster).pre_flight
    assert found is not None
    return found


def until_asked(cluster: PreFlightCluster) -> None:
    for _ in range(8):
        if len(cluster.asked_nodes()) == 2:
            return
        cluster.live(1)
    raise AssertionError(status(cluster).last_message)


def silent(**policy: Any) -> PreFlightCluster:
    """Both nodes are asked, and do not answer."""
    cluster = begin(checked_job(**policy), live=0, node_a="", node_b="")
    until_asked(cluster)
    return cluster


def test_the_launcher_is_created_after_all_answers_and_the_requests_are_withdrawn() -> None:
    cluster = begin(live=0, node_b="")
    until_asked(cluster)
    cluster.live()
    assert LAUNCHER not in cluster.pods
    assert not missing_facts(status(cluster).last_message, "ipulink", "pciebw", "node-b")
    assert "node-a" not in status(cluster).last_message, "it has answered"
    [request] = cluster.requests["node-b"].values()
    assert (request.checks, request.force, request.by) == (("ipulink", "pciebw"), False, "IPUJob default/train")
    assert request.params == {"beside": "default/train-worker-"}
    assert seconds(request.expires) == seconds(checked(cluster).start_time or "") + 300, "nobody waits for it then"
    del cluster.says["node-b"]
    cluster.live()
    assert (status(cluster).launcher_status, checked(cluster).state) == ("Running", "Passed")
    assert cluster.asked_nodes() == []
    assert sorted(cluster.ran.values()) == [1, 1]
    [passed] = cluster.events("PreFlightPassed")
    assert not missing_facts(passed, "ipulink", "pciebw")
    written = cluster.writes
    cluster.live()
    assert cluster.writes == written, "what was checked costs nothing more"


@pytest.mark.parametrize("verdict", ["WARN", "SKIP"])
def test_a_result_other_than_fail_starts_the_job(verdict: str) -> None:
    cluster = begin(node_a=verdict)
    assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 0)


@pytest.mark.parametrize("on_fault", ["Keep", "Fail", "Move"])
def test_a_failed_node_is_left_and_avoided_without_a_taint(on_fault: str) -> None:
    cluster = begin(checked_job(on_fault=on_fault), node_a="FAIL", live=24)
    said = status(cluster)
    assert (said.launcher_status, said.moves, said.attempt, said.restart_count) == ("Running", 1, 1, 0)
    assert set(cluster.where().values()) == {"node-b", "node-c"}
    [failed] = cluster.events("PreFlightFailed")
    [moving] = cluster.events("IPUJobMoving")
    for text in (failed, moving):
        assert not missing_facts(text, "node-a", "ipulink, pciebw", "FAIL: LowBandwidth: 3 GB/s")
    assert not missing_facts(moving, "train-worker-0")
    assert said.last_move is not None
    assert (said.last_move.nodes, said.last_move.reason) == (("node-a",), "PreFlightFailed")
    assert [each.name for each in checked(cluster).left] == ["node-a"]
    assert cluster.asked_nodes() == []
    assert not any(pod.metadata.deletion_timestamp for pod in cluster.pods.values())
    assert cluster.ran.keys() & {("node-c", name) for _, name in cluster.ran}, "the new node is checked, too"


def test_all_nodes_that_fail_are_left_in_one_move() -> None:
    cluster = PreFlightCluster(nodes=("node-a", "node-b", "node-c", "node-d"))
    cluster.says = {"node-a": "FAIL", "node-b": "FAIL"}
    cluster.add(checked_job())
    cluster.live(24)
    assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 1)
    assert set(cluster.where().values()) == {"node-c", "node-d"}


def test_a_taint_before_the_launcher_moves_the_job_whatever_its_policy() -> None:
    for on_fault in ("Keep", "Fail"):
        cluster = silent(on_fault=on_fault)
        cluster.bad["node-b"] = TAINTED
        cluster.says.clear()
        cluster.live(16)
        assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 1)
        assert set(cluster.where().values()) == {"node-a", "node-c"}
        cluster.bad["node-a"] = TAINTED
        cluster.live()
        assert status(cluster).launcher_status == ("Running" if on_fault == "Keep" else "Failed"), "it runs now"


@pytest.mark.parametrize(("verdict", "why"), [("", "60 s"), ("UNKNOWN", "UNKNOWN: LowBandwidth")])
def test_an_unknown_result_delays_nothing_and_is_reported(verdict: str, why: str) -> None:
    cluster = begin(checked_job(timeoutSeconds=60), node_a=verdict)
    cluster.waits_s(60)
    cluster.live()
    assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 0)
    [told] = cluster.events("PreFlightUnknown")
    assert not missing_facts(told, "node-a", "ipulink, pciebw", why)
    assert cluster.asked_nodes() == []


@pytest.mark.parametrize("verdict", ["", "UNKNOWN"])
def test_with_must_pass_a_job_leaves_unknown_nodes(verdict: str) -> None:
    cluster = begin(checked_job(timeoutSeconds=60, mustPass=True), node_a=verdict)
    cluster.waits_s(60)
    cluster.live(16)
    assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 1)
    assert set(cluster.where().values()) == {"node-b", "node-c"}


def test_a_node_that_cannot_be_asked_is_reported_with_the_reason() -> None:
    cluster = PreFlightCluster(full={"node-b"})
    cluster.add(checked_job(timeoutSeconds=60))
    cluster.live()
    assert not missing_facts(status(cluster).last_message, "ipulink, pciebw", "node-b", CANNOT_BE_ASKED)
    cluster.waits_s(60)
    cluster.live()
    assert status(cluster).launcher_status == "Running"
    assert [CANNOT_BE_ASKED in text for text in cluster.events("PreFlightUnknown")] == [True]


def test_no_request_is_made_before_existing_ones_are_known() -> None:
    cluster = PreFlightCluster(readable=False)
    cluster.add(checked_job(timeoutSeconds=60))
    cluster.live(10)
    assert (cluster.asked_nodes(), LAUNCHER in cluster.pods) == ([], False)
    cluster.waits_s(60)
    cluster.live()
    assert status(cluster).launcher_status == "Running"
    assert len(cluster.events("PreFlightUnknown")) == 2
    assert all("NodeHealths" in text for text in cluster.events("PreFlightUnknown"))


def test_moves_are_bounded_as_those_of_running_jobs_are() -> None:
    cluster = PreFlightCluster(nodes=tuple(f"node-{number}" for number in range(9)), setup=JobSetup(moves_per_hour=2))
    cluster.says = dict.fromkeys(cluster.nodes, "FAIL")
    cluster.add(checked_job())
    cluster.live(40)
    assert (status(cluster).moves, LAUNCHER in cluster.pods) == (2, False)
    held = next(each for each in status(cluster).conditions if each.type == "HealthDegraded")
    assert (held.status, held.reason) == ("True", "PreFlightFailed")
    next_move_at = rfc3339_whole(seconds(status(cluster).move_starts[0]) + HOUR_S)
    assert not missing_facts(held.message, next_move_at, "2")
    cluster.hour()
    cluster.says.clear()
    cluster.live(24)
    assert status(cluster).launcher_status == "Running"


def test_a_job_that_cannot_move_releases_its_partitions_and_starts_once_the_node_is_good() -> None:
    cluster = PreFlightCluster(nodes=("node-a",))
    cluster.says = {"node-a": "FAIL"}
    cluster.add(checked_job(workers=1))
    cluster.live()
    held = next(each for each in status(cluster).conditions if each.type == "HealthDegraded")
    assert not missing_facts(held.message, "0", "1"), "healthy nodes, and nodes that it needs"
    cluster.waits_s(300)
    assert (cluster.tracker, status(cluster).moves) == ({}, 0)
    given_back = status(cluster).given_back
    assert given_back is not None
    assert not missing_facts(given_back.message, "ipulink, pciebw", "FAIL")
    del cluster.says["node-a"]
    cluster.waits_s(AVOIDED_S + 600)
    assert (status(cluster).launcher_status, set(cluster.where().values())) == ("Running", {"node-a"})


def test_where_nothing_is_given_back_the_nodes_are_asked_again_after_an_hour() -> None:
    cluster = PreFlightCluster(nodes=("node-a", "node-b"), setup=JobSetup(hold_timeout_s=0))
    cluster.says = {"node-a": "FAIL"}
    cluster.add(checked_job())
    cluster.live()
    del cluster.says["node-a"]
    cluster.live()
    assert LAUNCHER not in cluster.pods
    job = cluster.jobs[UID]
    waits_s = plan(job, cluster.snapshot(job, {}, {}), cluster.setup).again_s
    assert waits_s is not None
    assert AVOIDED_S - 200 < waits_s <= AVOIDED_S
    cluster.now += waits_s
    cluster.live()
    assert (status(cluster).launcher_status, status(cluster).moves) == ("Running", 0)


@pytest.mark.parametrize("end", ["suspended", "deleted", "edited", "failed", "too late"])
def test_unneeded_requests_are_withdrawn(end: str) -> None:
    cluster = silent()
    if end == "suspended":
        cluster.edit(UID, suspend=True)
    elif end == "deleted":
        cluster.delete(UID)
    elif end == "edited":
        cluster.edit(UID, health_policy=UNSET)
    elif end == "failed":
        cluster.set_phase(("default", "train-worker-0"), "Failed")
    else:
        cluster.edit(UID, active_deadline_seconds=1)
    cluster.live()
    assert cluster.asked_nodes() == []
    assert not cluster.ran
    if end == "edited":
        assert status(cluster).launcher_status == "Running"
    if end == "suspended":
        assert status(cluster).pre_flight is None
        cluster.edit(UID, suspend=False)
        cluster.says.clear()
        cluster.live()
        assert status(cluster).launcher_status == "Running"
        assert len(cluster.ran) == 2, "it is asked anew"


def test_an_attempt_that_ends_leaves_its_question_and_the_next_one_asks_its_own() -> None:
    job = checked_job()
    spec = msgspec.structs.replace(job.spec, restart_policy=RestartPolicy(type="OnFailure"))
    cluster = begin(msgspec.structs.replace(job, spec=spec), live=0, node_a="", node_b="")
    until_asked(cluster)
    first = {name for held in cluster.requests.values() for name in held}
    cluster.set_phase(("default", "train-worker-0"), "Failed")
    cluster.live()
    second = {name for held in cluster.requests.values() for name in held}
    assert second
    assert first.isdisjoint(second)
    cluster.says.clear()
    cluster.live()
    assert (status(cluster).launcher_status, status(cluster).restart_count) == ("Running", 1)


def test_a_running_job_continues_when_checks_are_added() -> None:
    cluster = begin(make_job(workers=2, finalizers=()))
    before = dict(cluster.pods)
    cluster.edit(UID, health_policy=checked_job().spec.health_policy)
    cluster.live()
    assert (dict(cluster.pods), cluster.asked_nodes(), status(cluster).pre_flight) == (before, [], None)


def test_other_jobs_requests_stay() -> None:
    cluster = silent()
    others = {name.replace("train", "other"): each for name, each in cluster.requests["node-a"].items()}
    cluster.requests["node-a"] |= others
    cluster.edit(UID, suspend=True)
    cluster.live()
    assert cluster.requests["node-a"] == others


def lived(dies_at: int = 0) -> PreFlightCluster:
    """A life with one node that fails, and one that does not answer in time."""
    cluster = begin(checked_job(timeoutSeconds=60), live=0, dies_at=dies_at, node_a="FAIL", node_c="")
    cluster.live(40)
    return cluster


def outcome(cluster: PreFlightCluster) -> tuple[object, ...]:
    said = status(cluster)
    counts = said.launcher_status, said.moves, said.attempt, said.restart_count, checked(cluster).state
    return (*counts, cluster.where(), cluster.asked_nodes())


def test_a_crash_of_the_operator_changes_neither_the_result_nor_the_number_of_runs() -> None:
    whole = lived()
    assert outcome(whole)[:5] == ("Running", 1, 1, 0, "Passed")
    assert whole.asked_nodes() == []
    for point in range(1, whole.writes + 1):
        cluster = lived(point)
        assert outcome(cluster) == outcome(whole), point
        runs: dict[tuple[str, str], int] = {}
        for (node, name), number in cluster.ran.items():
            attempt = name.removeprefix(f"ipujob-{UID}-").split("-")[0]
            runs[node, attempt] = runs.get((node, attempt), 0) + number
        assert set(runs.values()) == {1}, (point, runs)


def test_the_launcher_is_created_only_after_the_verdict_is_written() -> None:
    cluster = begin(live=0)
    until_asked(cluster)
    cluster.answer()
    job = cluster.jobs[UID]
    decided = plan(job, cluster.snapshot(job, {}, {}), cluster.setup)
    assert not [each for each in decided.actions if isinstance(each, CreateObject)]
    assert decided.status is not None
    assert decided.status.pre_flight is not None
    assert decided.status.pre_flight.state == "Passed"

"""Evidence against nodes: what is proven, by whom, and what is not."""

import math
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.tainter.outcomes.simulated_fleets import EXITED, HOST_KINDS, IMAGE, REJECTED, TENANT_KINDS, settings

from muster_tainter.outcomes.evidence import HOUR_S, Attempt, EvidenceSettings, Verdict
from muster_tainter.outcomes.evidence_tracker import EvidenceTracker

START = 1e9
NODES = [f"n{number}" for number in range(20)]
UIDS = map(str, count())


def attempt(node: str, at: float, kind: str = "", namespace: str = "ns", owner: str = "o") -> Attempt:
    passed = frozenset[str]() if kind in HOST_KINDS else HOST_KINDS
    return Attempt(node, owner, namespace, kind, bool(kind), at, at - 5, next(UIDS), passed)


def rejected_until_proven(tracker: EvidenceTracker, at: float, gap_s: float, most: int = 100) -> int:
    """One node rejects all pods of one controller. How many until it is proven."""
    for number in range(1, most + 1):
        at += gap_s
        if proofs := tracker.add(attempt("n0", at, REJECTED)):
            assert [(each.node, each.kind, each.proven) for each in proofs] == [("n0", REJECTED, True)]
            return number
    return most + 1


@pytest.mark.parametrize("gap_s", [11.5, 60.0])  # pytorch/ci-infra 1058: 554 pods in 106 minutes
def test_node_that_rejects_everything_is_proven_by_five_attempts_without_history(gap_s: float) -> None:
    assert rejected_until_proven(EvidenceTracker(settings()), START, gap_s) <= 5


@pytest.mark.parametrize(("healthy", "gap_s"), [(20, 180.0), (200, 180.0), (200, 11.5), (200, 1.0)])
@pytest.mark.parametrize("nodes", [1, 5, 20])
def test_node_that_rejects_everything_is_proven_by_five_attempts_after_health(
    healthy: int, gap_s: float, nodes: int
) -> None:
    tracker, at = EvidenceTracker(settings()), START
    for _ in range(healthy):
        at += gap_s
        for node in NODES[:nodes]:
            tracker.add(attempt(node, at))
    assert rejected_until_proven(tracker, at, 11.5) <= 5


def test_pods_that_a_node_rejects_within_ten_seconds_count_once() -> None:
    """A device plug-in restarts while a job of 64 pods is placed."""
    tracker = EvidenceTracker(settings())
    for number in range(64):
        assert tracker.add(attempt("n0", START + number * 9 / 64, REJECTED)) == []
    verdict = tracker.verdict("n0", REJECTED)
    assert verdict
    assert verdict.failures == 1


def test_fleet_in_which_all_nodes_reject_pods_has_no_bad_node() -> None:
    tracker, at = EvidenceTracker(settings()), START
    for _ in range(50):
        for node in NODES:
            at += 5
            tracker.add(attempt(node, at))
    for _ in range(200):
        for node in NODES:
            at += 5
            assert tracker.add(attempt(node, at, REJECTED)) == []


def test_three_nodes_of_twenty_that_go_bad_together_are_all_proven() -> None:
    tracker, at, proven = EvidenceTracker(settings()), START, set[str]()
    for turn in range(60):
        for node in NODES:
            at += 5
            bad = turn > 40 and node in NODES[:3]
            proven |= {each.node for each in tracker.add(attempt(node, at, REJECTED if bad else ""))}
    assert proven == set(NODES[:3])


def job(at: float, kinds: dict[str, str], namespace: str, owner: str, nodes: list[str] = NODES) -> list[Attempt]:
    """One pod on each node, created together. Those in ``kinds`` fail."""
    return [
        replace(attempt(node, at + 60, kinds.get(node, ""), namespace, owner), started=at)
        for node in nodes
    ]  # fmt: skip


def play(tracker: EvidenceTracker, kinds: dict[str, str], namespaces: list[str], jobs: int) -> list[Verdict]:
    proofs = []
    for number in range(jobs):
        at = START + number * 600
        for each in job(at, kinds, namespaces[number % len(namespaces)], f"o{number}"):
            proofs += tracker.add(each)
        proofs += tracker.advance(at + 7 * HOUR_S)
    return proofs


def test_node_on_which_jobs_of_two_namespaces_fail_is_proven() -> None:
    proofs = play(EvidenceTracker(settings()), {"n3": EXITED}, ["a", "b"], jobs=24)
    assert [(each.node, each.kind, each.namespaces) for each in proofs] == [("n3", EXITED, 2)]
    assert proofs[0].failures == proofs[0].attempts
    assert proofs[0].expected_rate == pytest.approx(1 / 20)
    assert proofs[0].value >= proofs[0].threshold


def test_one_tenant_cannot_prove_anything_about_a_node() -> None:
    tracker = EvidenceTracker(settings())
    assert play(tracker, {"n3": EXITED}, ["a"], jobs=300) == []
    verdict = tracker.verdict("n3", EXITED)
    assert verdict
    assert verdict.value < 1.1
    assert (verdict.proven, verdict.namespaces, verdict.failures) == (False, 1, 300)


@pytest.mark.parametrize("kind", [EXITED, IMAGE])
@pytest.mark.parametrize("namespaces", [["a"], ["a", "b", "c"]])
def test_owners_that_fail_everywhere_blame_no_node(kind: str, namespaces: list[str]) -> None:
    tracker = EvidenceTracker(settings())
    assert play(tracker, dict.fromkeys(NODES, kind), namespaces, jobs=1000) == []


def test_owner_with_one_pod_says_nothing() -> None:
    tracker = EvidenceTracker(settings())
    for number in range(500):
        assert tracker.add(attempt("n0", START + 60 * number, EXITED, f"ns-{number % 3}", f"o{number}")) == []
    assert tracker.advance(START + 60 * 500 + 7 * HOUR_S) == []
    assert tracker.verdict("n0", EXITED) is None


def test_proven_node_is_not_compared_until_it_starts_anew() -> None:
    tracker = EvidenceTracker(settings())
    (proof,) = play(tracker, {"n3": EXITED}, ["a", "b"], jobs=24)
    assert tracker.proven() == [proof]
    assert play(tracker, {"n3": EXITED}, ["a", "b"], jobs=24) == []
    tracker.restart("n3", EXITED)
    assert tracker.proven() == []
    later = START + 30 * 24 * HOUR_S
    for number in range(24):
        for each in job(later + number * 600, {"n3": EXITED}, "ab"[number % 2], f"p{number}"):
            tracker.add(each)
    assert [each.node for each in tracker.advance(later + 24 * HOUR_S)] == ["n3"]


def test_pod_without_devices_does_not_hide_that_devices_are_not_allocated() -> None:
    tracker, proofs = EvidenceTracker(settings()), list[Verdict]()
    for number in range(5):
        at = START + 20 * number
        for after in range(10):
            small = replace(attempt("n0", at + after), passed=frozenset({REJECTED}))
            assert tracker.add(small) == []
        proofs += tracker.add(attempt("n0", at + 11, "DeviceAllocation"))
    assert [each.kind for each in proofs] == ["DeviceAllocation"]


@pytest.mark.parametrize("jump_s", [-30 * 24 * HOUR_S, 30 * 24 * HOUR_S])
def test_clock_that_jumps_proves_nothing_and_hides_nothing_afterwards(jump_s: float) -> None:
    tracker, at = EvidenceTracker(settings()), START
    assert rejected_until_proven(tracker, at, 11.5, most=3) > 3
    at += jump_s
    assert tracker.advance(at) == []
    assert rejected_until_proven(tracker, at, 11.5, most=1) > 1
    at -= jump_s
    assert tracker.advance(at) == []
    assert rejected_until_proven(tracker, at + 60, 11.5) <= 6


def test_proof_outlives_a_clock_that_goes_back() -> None:
    tracker = EvidenceTracker(settings())
    rejected_until_proven(tracker, START, 11.5)
    assert tracker.advance(START - 24 * HOUR_S) == []
    assert [each.node for each in tracker.proven()] == ["n0"]


def test_failure_of_an_unknown_kind_is_not_compared() -> None:
    tracker = EvidenceTracker(settings())
    assert play(tracker, {"n3": "Unheard"}, ["a", "b"], jobs=24) == []
    assert tracker.verdict("n3", "Unheard") is None


def test_memory_is_bounded_whatever_owners_and_nodes_there_are() -> None:
    few = replace(settings(), records=500, nodes=50)
    tracker = EvidenceTracker(few)
    for number in range(6_000):
        kind = EXITED if number % 3 else ""
        tracker.add(attempt(f"n{number % 977}", START + number, kind, f"ns-{number}", f"o{number // 2}"))
    assert len(tracker._nodes) <= 50
    assert tracker._rounds.records <= 500
    assert all(len(rate._nodes) <= 50 for rate in tracker._rates.values())


def test_proof_is_kept_when_other_nodes_take_the_room() -> None:
    tracker = EvidenceTracker(replace(settings(), nodes=3))
    assert rejected_until_proven(tracker, START, 60.0) <= 5
    for number in range(50):
        tracker.add(attempt(f"other-{number}", START + HOUR_S + number))
    assert [each.node for each in tracker.proven()] == ["n0"]


def test_node_that_was_evicted_gets_no_capital_twice() -> None:
    tracker = EvidenceTracker(replace(settings(), nodes=1))
    tracker.add(attempt("n0", START, REJECTED))
    first = tracker.verdict("n0", REJECTED)
    tracker.add(attempt("n1", START))
    tracker.add(attempt("n0", START, REJECTED))
    again = tracker.verdict("n0", REJECTED)
    assert first
    assert again
    assert again.value == 0 < first.value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["at", "started"])
def test_time_that_is_not_a_number_is_an_error(name: str, number: float) -> None:
    with pytest.raises(ValueError, match="'7'"):
        replace(attempt("n0", START), pod="7", **{name: number})  # type: ignore[arg-type]  # mypy takes any field for it


@pytest.mark.parametrize(
    "change",
    [
        {"false_alarms_per_node_year": 0.0},
        {"false_alarms_per_node_year": math.nan},
        {"round_s": 0.0},
        {"spacing_s": -1.0},
        {"records": 1},
        {"nodes": 0},
        {"host_kinds": TENANT_KINDS, "tenant_kinds": TENANT_KINDS},
        {"host_kinds": frozenset(), "tenant_kinds": frozenset()},
    ],
)
def test_settings_that_make_no_sense_are_an_error_that_names_them(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(reversed(change))):
        replace(settings(), **change)  # type: ignore[arg-type]  # what is wrong is the point


def test_threshold_divides_the_false_alarms_of_a_year() -> None:
    each = EvidenceSettings(frozenset("ab"), frozenset("cd"), false_alarms_per_node_year=0.1)
    weeks, kinds = 365.25 / 7, 4
    assert weeks * kinds / each.threshold == pytest.approx(0.1)


class EvidenceMachine(RuleBasedStateMachine):
    """Any attempts in any order, with a clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = EvidenceTracker(replace(settings(1.0), records=100, nodes=4))
        self.now = START
        self.proven: set[tuple[str, str]] = set()

    def reached(self, proofs: list[Verdict]) -> None:
        for each in proofs:
            assert each.proven
            assert each.value >= each.threshold
            assert each.kind in HOST_KINDS or each.namespaces > 1
            assert (each.node, each.kind) not in self.proven
            self.proven.add((each.node, each.kind))

    @rule(
        node=st.sampled_from(NODES[:6]),
        kind=st.sampled_from(["", "", EXITED, IMAGE, REJECTED, "Unheard"]),
        owner=st.sampled_from("abc"),
        age=st.sampled_from([0.0, 5.0, 300.0]),
        passed=st.sampled_from([-HOUR_S, 0.0, 11.0, 11.0, HOUR_S, 1e7]),
        times=st.sampled_from([1, 8]),
    )
    def end_pods(self, node: str, kind: str, owner: str, age: float, passed: float, times: int) -> None:
        for _ in range(times):
            self.now += passed
            pod = attempt(node, self.now, kind, f"ns-{owner}", owner)
            self.reached(self.tracker.add(replace(pod, started=self.now - age)))

    @rule(owner=st.sampled_from("abc"), bad=st.sampled_from(NODES[:6]), kind=st.sampled_from([EXITED, IMAGE]))
    def run_job(self, owner: str, bad: str, kind: str) -> None:
        for pod in job(self.now, {bad: kind}, f"ns-{owner}", owner, NODES[:6]):
            self.reached(self.tracker.add(pod))
        self.now += HOUR_S

    @rule()
    def advance(self) -> None:
        self.now += 7 * HOUR_S
        self.reached(self.tracker.advance(self.now))

    @precondition(lambda self: self.proven)
    @rule()
    def restart(self) -> None:
        node, kind = min(self.proven)
        self.proven.discard((node, kind))
        self.tracker.restart(node, kind)

    @rule(node=st.sampled_from(NODES[:6]))
    def drop(self, node: str) -> None:
        self.tracker.drop(node)
        self.proven = {each for each in self.proven if each[0] != node}

    @invariant()
    def state_is_sound(self) -> None:
        known = self.tracker._nodes
        assert len(known) <= 4
        found = {(each.node, each.kind) for each in self.tracker.proven()}
        assert found <= self.proven
        assert found == self.proven or len({node for node, _ in self.proven}) > 4  # more than it has room for
        self.proven = found
        assert self.tracker._rounds.records <= 100
        for kinds in known.values():
            for detector in kinds.values():
                assert 0 <= detector.value < math.inf
                assert 0 <= detector.failures <= detector.attempts


TestEvidenceMachine = EvidenceMachine.TestCase
TestEvidenceMachine.settings = hypothesis_settings(max_examples=10, stateful_step_count=25)

"""Which hop keeps a node's canary."""

import random

import pytest

from muster_kube.api.objects import Metadata
from muster_kube.nodehealth import CanaryReport, NodeHealth, NodeHealthStatus
from muster_tainter.canary.journeys import PERIODS, Journeys, State, choose_nodes
from muster_tainter.canary.trial import Arrival, Outcome

PERIOD_S = 600.0
LATE_S = PERIODS * PERIOD_S
ARRIVED = Outcome(Arrival.ARRIVED, "")


def health(at: str = "") -> NodeHealth:
    status = NodeHealthStatus(canary=CanaryReport(at=at))
    return NodeHealth(metadata=Metadata(name="n1"), status=status)


@pytest.fixture
def journeys() -> Journeys:
    made = Journeys()
    made.expect({"n1"}, 1000.0)
    return made


def arrive(journeys: Journeys, at: str, when: float, outcome: Outcome | None = ARRIVED) -> None:
    assert journeys.deliver("n1", health(""), health(at), when)
    assert journeys.is_pending("n1")
    if outcome is not None:
        journeys.decide("n1", outcome, when)
        assert not journeys.is_pending("n1")


def test_a_new_leader_waits_before_it_calls_one_late(journeys: Journeys) -> None:
    assert journeys.state("n1", PERIOD_S, 1000.0 + LATE_S, reports=True) is State.WAITING
    assert journeys.state("n1", PERIOD_S, 1001.0 + LATE_S, reports=True) is State.REPORT
    assert journeys.state("n1", PERIOD_S, 1001.0 + LATE_S, reports=False) is State.AGENT


def test_one_that_arrives_counts_until_the_next_is_late(journeys: Journeys) -> None:
    arrive(journeys, "t1", 5000.0)
    assert journeys.state("n1", PERIOD_S, 5000.0 + LATE_S, reports=True) is Arrival.ARRIVED
    assert journeys.state("n1", PERIOD_S, 5001.0 + LATE_S, reports=True) is State.REPORT


def test_the_state_of_one_that_people_keep_is_theirs(journeys: Journeys) -> None:
    arrive(journeys, "t1", 5000.0, Outcome(Arrival.BUDGET, ""))
    assert journeys.state("n1", PERIOD_S, 5001.0, reports=True) is Arrival.BUDGET


def test_one_that_is_delivered_and_not_decided_is_named(journeys: Journeys) -> None:
    arrive(journeys, "t1", 5000.0, None)
    half = (PERIODS - 1) * PERIOD_S
    assert journeys.state("n1", PERIOD_S, 5000.0 + half, reports=True) is State.WAITING
    assert journeys.state("n1", PERIOD_S, 5001.0 + half, reports=True) is State.DECISION


def test_those_that_are_delivered_after_an_undecided_one_do_not_hide_it(journeys: Journeys) -> None:
    arrive(journeys, "t1", 5000.0, None)
    arrive(journeys, "t2", 5000.0 + PERIOD_S, None)
    assert journeys.state("n1", PERIOD_S, 5001.0 + PERIOD_S, reports=True) is State.DECISION
    journeys.decide("n1", ARRIVED, 5002.0 + PERIOD_S)
    assert journeys.state("n1", PERIOD_S, 5003.0 + PERIOD_S, reports=True) is Arrival.ARRIVED


def test_the_next_is_late_from_the_delivery_of_the_last(journeys: Journeys) -> None:
    for number in range(3):
        arrive(journeys, f"t{number}", 5000.0 + number * PERIOD_S, None)
    last = 5000.0 + 2.0 * PERIOD_S
    decided = 5000.0 + 2.5 * PERIOD_S
    assert journeys.state("n1", PERIOD_S, decided, reports=True) is State.DECISION
    journeys.decide("n1", ARRIVED, decided)
    assert journeys.state("n1", PERIOD_S, decided, reports=True) is Arrival.ARRIVED
    assert journeys.state("n1", PERIOD_S, last + LATE_S, reports=True) is Arrival.ARRIVED
    assert journeys.state("n1", PERIOD_S, last + LATE_S + 1.0, reports=True) is State.REPORT


def test_a_decision_ends_the_wait_of_all_before_it(journeys: Journeys) -> None:
    arrive(journeys, "t1", 5000.0, None)
    arrive(journeys, "t2", 5000.0 + PERIOD_S)
    arrive(journeys, "t3", 5000.0 + 2.0 * PERIOD_S, None)
    assert journeys.state("n1", PERIOD_S, 5001.0 + 2.0 * PERIOD_S, reports=True) is State.WAITING


def test_only_a_new_one_is_delivered(journeys: Journeys) -> None:
    assert not journeys.deliver("n1", None, health("t1"), 1.0)  # the list at the start, however old it is
    assert not journeys.deliver("n1", health("t1"), health("t1"), 2.0)
    assert not journeys.deliver("n1", health("t1"), health(""), 3.0)
    assert journeys.deliver("n1", health("t1"), health("t2"), 4.0)


def test_the_choice_has_the_wanted_size_and_changes_little() -> None:
    rng = random.Random(25)
    names = {f"node-{number}" for number in range(500)}
    chosen = choose_nodes(names, 50)
    assert len(chosen) == 50
    for _ in range(50):
        gone = rng.choice(sorted(names))
        names.discard(gone)
        later = choose_nodes(names, 50)
        assert len(later - chosen) == (gone in chosen)
        chosen = later


def test_more_than_there_are_is_all() -> None:
    assert choose_nodes({"a", "b"}, 5) == {"a", "b"}

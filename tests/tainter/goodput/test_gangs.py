"""Pods of one gang that end together: what it costs to settle them, and which ends count as those of peers."""

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.goodput.ledger_bed import HOUR, START, advance, booked, fault, ledger, node, pod

from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.ledger import SLICE, Ledger
from muster_tainter.goodput.pods.attempt import SETTLE_S
from muster_tainter.goodput.pods.attribution import PEERS_S, stronger
from muster_tainter.goodput.pods.gang_ends import GangEnds
from muster_tainter.goodput.pods.pod_facts import End

LATER = START + 2 * HOUR
GANG = "team-a/JobSet/j"


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, those of C included."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def ended_together(pods: int, end: End = End.NODE, *, resumed_from: float = 0.0) -> Ledger:
    """A gang whose pods have all ended within two minutes, not settled yet."""
    books = ledger(resumed_from=resumed_from)
    for number in range(pods):
        ended = START + HOUR + number * PEERS_S / pods
        books.pod_changed(pod(f"p{number}", gang=GANG, started=START, ended=ended, end=end), 0, 0, LATER)
    return books


@pytest.mark.parametrize("resumed_from", [0.0, LATER])
def test_each_pod_of_a_gang_costs_the_same_however_many_end_together(resumed_from: float) -> None:
    few = calls_of(lambda: advance(ended_together(200, resumed_from=resumed_from), LATER))
    many = calls_of(lambda: advance(ended_together(800, resumed_from=resumed_from), LATER))
    assert many < 6 * few


def test_other_work_may_run_while_ends_are_settled() -> None:
    books = ended_together(3 * SLICE)
    runs = list(books.pods.runs())
    settled = [0]
    for _ in books.advance(LATER):
        settled.append(sum(run.cause is not None for run in runs))
    assert settled[-1] == len(runs)
    assert max(after - before for before, after in pairwise(settled)) <= SLICE


def test_an_end_that_comes_while_others_are_settled_is_settled_too() -> None:
    books = ended_together(2 * SLICE)
    steps = books.advance(LATER)
    next(steps)
    late = pod("late", gang=GANG, started=START, ended=START + HOUR, end=End.OWN)
    books.pod_changed(late, 0, 0, LATER)
    for _ in steps:
        pass
    assert booked(books)[Cause.USER] == 0
    assert len(books.pods) == 0


def test_a_fault_that_is_found_after_the_end_is_seen_by_the_peers() -> None:
    books = ledger()
    for number in range(2):
        books.node_changed(f"n{number}", node(), START)
        made = pod(f"p{number}", node=f"n{number}", gang=GANG, started=START, ended=START + 600, end=End.OWN)
        books.pod_changed(made, 0, 0, START + 600)
    books.node_changed("n0", node(fault(START + 660)), START + 660)
    books.node_changed("n0", node(fault(START + 660, incident=True)), START + 661)
    advance(books, START + 600 + SETTLE_S)
    assert booked(books) == {Cause.INCIDENT: 2 * 8 * 600}


causes = st.sampled_from([Cause.DRAIN, Cause.INCIDENT, Cause.FAULT, Cause.PREEMPTION])
ends = st.lists(st.tuples(st.integers(0, 600), st.sampled_from("abc"), causes), max_size=12)


@given(ends, st.integers(0, 600), st.sampled_from("abc"), st.integers(-1, 600))
def test_the_strongest_cause_of_the_peers_is_that_of_a_plain_search(
    what: list[tuple[int, str, Cause]], at: int, uid: str, forgotten: int
) -> None:
    gang = GangEnds()
    for each_at, each_uid, cause in what:
        gang.add(each_at, each_uid, cause)
    gang.forget(forgotten)
    expected: Cause | None = None
    for each_at, each_uid, cause in what:
        if each_uid != uid and abs(each_at - at) <= PEERS_S and each_at > forgotten:
            expected = stronger(expected, cause)
    assert gang.strongest(at, uid) is expected

"""What the ledger books, by example."""

from dataclasses import replace
from typing import Any

import pytest
from tests.tainter.goodput.ledger_bed import (
    HOUR,
    START,
    advance,
    booked,
    fault,
    figure,
    interruptions,
    ledger,
    node,
    pod,
)

from muster_tainter.goodput.books import Figure
from muster_tainter.goodput.causes import Cause, Side
from muster_tainter.goodput.observed_node import ObservedNode, Outage
from muster_tainter.goodput.pods.attempt import SETTLE_S
from muster_tainter.goodput.pods.pod_facts import End

LATER = START + 10 * HOUR


def one(
    *, end: End, ended: float = START + 2.5 * HOUR, node_after: ObservedNode | None = None, **more: Any
) -> dict[Cause, float]:
    """The hours of a pod with 8 accelerators that starts after 60 s, on a node that is then ``node_after``."""
    books = ledger()
    books.node_changed("n1", node(), START)
    books.pod_changed(pod(**more), 0, 0, START)
    books.pod_changed(pod(started=START + 60, **more), 0, 0, START + 61)
    books.pod_changed(pod(started=START + 60, ended=ended, end=end, **more), 0, 0, ended + 1)
    if node_after is not None:
        books.node_changed("n1", node_after, ended + 2)
    advance(books, LATER)
    return {cause: value / 8 for cause, value in booked(books).items()}


def test_a_success_keeps_all_work() -> None:
    assert one(end=End.SUCCEEDED) == {Cause.OVERHEAD: 60, Cause.GOODPUT: 2.5 * HOUR - 60}


def test_a_failure_loses_the_work_since_the_last_checkpoint() -> None:
    kept = {Cause.OVERHEAD: 60, Cause.GOODPUT: 2 * HOUR}
    assert one(end=End.OWN) == {**kept, Cause.USER: 0.5 * HOUR - 60}
    often = {Cause.OVERHEAD: 60, Cause.GOODPUT: 2.5 * HOUR - 120, Cause.USER: 60}
    assert one(end=End.OWN, checkpoint=120.0) == often


def test_a_service_loses_no_work() -> None:
    assert one(end=End.DELETED, service=True) == {Cause.OVERHEAD: 60, Cause.GOODPUT: 2.5 * HOUR - 60}


@pytest.mark.parametrize(
    ("end", "after", "cause"),
    [
        (End.OWN, node(fault(START + 2.5 * HOUR - 5)), Cause.FAULT),
        (End.OWN, node(fault(START + 2.5 * HOUR + 100)), Cause.FAULT),
        (End.OWN, node(fault(START + 2.5 * HOUR + 130)), Cause.USER),
        (End.OWN, node(fault(START, START + HOUR)), Cause.USER),
        (End.OWN, node(fault(START + HOUR, incident=True)), Cause.INCIDENT),
        (End.DELETED, node(fault(START + HOUR)), Cause.FAULT),
        (End.DELETED, node(), Cause.USER),
        (End.EVICTED, node(fault(START + HOUR), tainted=START + HOUR + 1), Cause.DRAIN),
        (End.EVICTED, node(fault(START + HOUR)), Cause.FAULT),
        (End.EVICTED, node(cordoned=True), Cause.DRAIN),
        (End.EVICTED, node(), Cause.UNKNOWN),
        (End.TAINTED, node(lost=True), Cause.FAULT),
        (End.TAINTED, node(), Cause.UNKNOWN),
        (End.PREEMPTED, node(), Cause.PREEMPTION),
        (End.STOPPED, node(), Cause.UNKNOWN),
        (End.NODE, node(), Cause.FAULT),
    ],
)
def test_the_cause_of_an_end(end: End, after: ObservedNode, cause: Cause) -> None:
    assert one(end=end, node_after=after)[cause] == 0.5 * HOUR - 60


def test_a_pod_that_chose_a_tainted_node_cannot_blame_its_fault() -> None:
    books = ledger()
    books.node_changed("n1", node(fault(START - HOUR), tainted=START - HOUR), START)
    books.pod_changed(pod(started=START + 1), 0, 0, START + 1)
    books.pod_changed(pod(started=START + 1, ended=START + 100, end=End.OWN), 0, 0, START + 100)
    advance(books, LATER)
    assert booked(books)[Cause.USER] == 8 * 99


def test_pods_of_one_job_that_end_together_ended_for_one_cause_and_interrupt_it_once() -> None:
    books = ledger()
    for i in range(4):
        books.node_changed(f"n{i}", node(), START)
        books.pod_changed(pod(f"p{i}", node=f"n{i}", gang="team-a/Job/j", started=START), 0, 0, START)
    stranger = pod("other", node="n9", gang="team-a/Job/k", started=START, ended=START + 600, end=End.OWN)
    books.pod_changed(stranger, 0, 0, START + 600)
    books.node_changed("n0", node(fault(START + 595)), START + 596)
    for i in range(4):
        ended = START + 600 + 20 * i
        books.pod_changed(
            pod(f"p{i}", node=f"n{i}", gang="team-a/Job/j", started=START, ended=ended, end=End.OWN), 0, 0, ended
        )
    advance(books, LATER)
    assert booked(books) == {Cause.FAULT: 8 * (4 * 600 + 120), Cause.USER: 8 * 600}
    assert interruptions(books) == {Cause.FAULT: 1}
    assert list(books.lemons.all()) == ["n0"], "only its own node is blamed, not those of its peers"
    rows = [name for bucket in books.books.buckets() for row in bucket.rows.values() for name in row]
    assert "work/fault" in rows
    assert "work/fault/peer" in rows


def test_a_restart_in_place_is_lost_to_what_ended_the_run() -> None:
    books = ledger()
    books.pod_changed(pod(started=START + 10), 0, 0, START + 10)
    crash: dict[str, Any] = {"crashed": START + 100, "crash": End.OWN, "crash_why": "Error"}
    books.pod_changed(pod(started=0.0, **crash), 0, 0, START + 101)
    books.pod_changed(pod(started=START + 400, **crash), 0, 0, START + 400)
    end: dict[str, Any] = {"ended": START + 500, "end": End.SUCCEEDED}
    books.pod_changed(pod(started=START + 400, **end), 0, 0, START + 500)
    advance(books, LATER)
    assert booked(books) == {Cause.OVERHEAD: 80, Cause.USER: 8 * (90 + 300), Cause.GOODPUT: 8 * 100}


def test_work_of_a_running_pod_is_booked_to_its_last_checkpoint_and_the_rest_is_at_risk() -> None:
    books = ledger()
    books.pod_changed(pod(started=START), 0, 0, START)
    advance(books, START + 1.9 * HOUR)
    assert booked(books) == {Cause.GOODPUT: 8 * HOUR}
    assert sum(books.risk.values()) == pytest.approx(8 * 0.9 * HOUR)


def test_a_long_start_is_not_all_overhead_and_a_start_that_never_comes_is_lost_to_its_end() -> None:
    books = ledger()
    books.pod_changed(pod("slow"), 0, 0, START)
    books.pod_changed(pod("never"), 0, 0, START)
    advance(books, START + HOUR)
    assert not booked(books)
    assert sum(books.risk.values()) == 2 * 8 * HOUR
    books.pod_changed(pod("slow", started=START + HOUR, service=True), 0, 0, START + HOUR)
    books.pod_gone("never", End.DELETED, START + HOUR)
    advance(books, START + HOUR + SETTLE_S)
    assert booked(books) == {Cause.OVERHEAD: 8 * 900, Cause.UNKNOWN: 8 * (HOUR - 900), Cause.USER: 8 * HOUR}


def test_time_without_a_pod_is_booked_to_what_the_node_was() -> None:
    books = ledger()
    books.node_changed("n1", node(), START)
    books.pod_changed(pod(devices=6, started=START + 100, bound=START + 100), 0, 0, START + 100)
    books.node_changed("n1", node(fault(START + 200), state=Cause.FAULT), START + 200)
    books.node_changed("n1", node(fault(START + 200), state=Cause.TEST), START + 300)
    books.node_changed("n1", node(state=Cause.IDLE), START + 350)
    books.node_gone("n1", START + 400)
    advance(books, START + 500)
    assert booked(books, Side.NODE) == {
        Cause.IDLE: 8 * 100 + 2 * (100 + 50), Cause.FAULT: 2 * 100, Cause.TEST: 2 * 50,
    }  # fmt: skip
    assert (figure(books, Figure.OUTAGES), figure(books, Figure.ENDED), figure(books, Figure.OUT)) == (1, 1, 150)
    assert figure(books, Figure.NODES) == 400


def test_an_outage_that_came_and_went_between_two_looks_counts_once() -> None:
    books = ledger()
    seen = Outage(START + 10, START + 20, "Xid79")
    missed = Outage(START + 30, START + 31, "Xid48"), Outage(START + 31, START + 32, "Xid79")
    for at, observed in (
        (0, node()),
        (10, node(fault(START + 10))),
        (20, replace(node(), ended=(seen,))),
        (32, replace(node(), ended=(*missed, seen))),
        (40, replace(node(), ended=(*missed, seen))),
        (50, replace(node(), ended=missed)),  # the record forgets after a day
    ):
        books.node_changed("n1", observed, START + at)
    assert (figure(books, Figure.OUTAGES), figure(books, Figure.ENDED), figure(books, Figure.OUT)) == (2, 2, 10 + 2)


def test_an_outage_of_no_second_has_a_metric_of_its_time() -> None:
    books = ledger()
    books.node_changed("n1", node(), START)
    books.node_changed("n1", replace(node(), ended=(Outage(START + 1, START + 1, "Xid79"),)), START + 1)
    assert books.books.by_place[0, Figure.OUT] == 0.0
    assert (0, Figure.OUT) in books.books.by_place


def test_a_lying_clock_moves_nothing_beyond_the_pod_s_own_time() -> None:
    books = ledger()
    books.pod_changed(pod(started=START - 10 * HOUR), 0, 0, START + 5)
    books.pod_changed(pod(started=START - 10 * HOUR, ended=START + 90 * HOUR, end=End.SUCCEEDED), 0, 0, START + 600)
    advance(books, LATER)
    assert booked(books) == {Cause.GOODPUT: 8 * 600}


def test_nothing_from_before_the_ledger_began_is_booked() -> None:
    books = ledger(since=LATER)
    books.pod_changed(pod(started=START), 0, 0, LATER)
    old = pod("old", started=START, ended=START + 5, end=End.OWN)
    books.pod_changed(old, 0, 0, LATER)
    advance(books, LATER + HOUR + SETTLE_S)
    assert booked(books) == {Cause.GOODPUT: 8 * HOUR}
    assert interruptions(books) == {}

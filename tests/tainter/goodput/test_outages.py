"""Which outages of a node are counted, whatever its record says and however often the ledger looks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.goodput.ledger_bed import HOUR, NEVER, START, figure, ledger

from muster_tainter.goodput.books import Figure
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.ledger import Ledger
from muster_tainter.goodput.observed_node import ObservedNode, Outage
from muster_tainter.goodput.pods.attribution import NodeEvidence
from muster_tainter.goodput.state import read_state, snapshot, write_state

LATEST = 253_402_300_799.0  # the end of year 9999


def seen(*ended: tuple[float, float], out: float | None = None) -> ObservedNode:
    """Seconds after START. ended: (since, until) of its closed faults; out: since when a fault is open."""
    present = None if out is None else Outage(START + out, 0.0, "Xid79")
    closed = tuple(Outage(START + since, START + until, "Xid48") for since, until in ended)
    return ObservedNode(0, 8, Cause.IDLE, NodeEvidence(), present, closed)


def looks(*what: tuple[float, ObservedNode], resumed_from: float = 0.0) -> Ledger:
    """(when, in seconds after START; what the Node says then)."""
    books = ledger(resumed_from=START + resumed_from if resumed_from else 0.0)
    for at, observed in what:
        books.node_changed("n1", observed, START + at)
    return books


def counted(books: Ledger) -> tuple[float, float, float]:
    """(outages that began, that ended, the seconds of these)."""
    return tuple(figure(books, name) for name in (Figure.OUTAGES, Figure.ENDED, Figure.OUT))  # type: ignore[return-value]


def test_two_outages_between_two_looks_are_two() -> None:
    assert counted(looks((0, seen()), (50, seen((10, 12), (20, 21))))) == (2, 2, 3)
    assert counted(looks((0, seen()), (50, seen((20, 21), (10, 12), (11, 15))))) == (2, 2, 6)


def test_an_outage_that_was_over_before_the_present_one_began_counts() -> None:
    books = looks((0, seen()), (50, seen((10, 12), out=40)))
    assert counted(books) == (2, 1, 2)
    books.node_changed("n1", seen((10, 12), (40, 60)), START + 60)
    assert counted(books) == (2, 2, 22)


def test_an_outage_that_ended_and_another_that_began_between_two_looks() -> None:
    books = looks((0, seen()), (10, seen(out=10)), (50, seen((10, 20), out=40)))
    assert counted(books) == (2, 1, 10)


def test_a_node_is_out_until_none_of_its_faults_is_open() -> None:
    books = looks((0, seen()), (10, seen(out=10)), (20, seen((10, 15), out=12)), (30, seen((10, 15), (12, 30))))
    assert counted(books) == (1, 1, 20)


def test_the_outage_of_a_record_that_was_removed_ends_when_that_is_seen() -> None:
    assert counted(looks((0, seen()), (10, seen(out=10)), (20, seen()))) == (1, 1, 10)


@pytest.mark.parametrize("first", [seen(), seen((-START + 5, LATEST - START))])
def test_a_forged_record_costs_no_more_than_the_time_that_has_passed(first: ObservedNode) -> None:
    forged = seen((-START + 1, LATEST - START))
    books = looks((0, first), (100, forged), (200, replace(forged, outage=Outage(1.0, 0.0, "Xid79"))), (300, seen()))
    _, _, out = counted(books)
    assert out <= 300
    now = books.booked_until = START + HOUR
    assert read_state(write_state(snapshot(books, ())), now).buckets


def test_a_closed_fault_of_which_only_the_end_is_left_does_not_count() -> None:
    stripped = (-START, 20.0)
    assert counted(looks((0, seen()), (30, seen(stripped)))) == (0, 0, 0)
    assert counted(looks((30, seen(stripped)))) == (0, 0, 0)


def test_an_open_fault_without_a_time_begins_when_it_is_seen() -> None:
    books = looks((0, seen()), (100, seen(out=-START)), (130, seen()))
    assert counted(books) == (1, 1, 30)


def test_a_new_leader_whose_view_is_older_does_not_count_an_outage_again() -> None:
    booked = (1000, 1010)
    assert counted(looks((1021, seen()), (1022, seen(booked)), resumed_from=1020)) == (0, 0, 0)
    # its beginning was counted, its end was not
    assert counted(looks((1021, seen()), (1022, seen((1000, 1022))), resumed_from=1020))[:2] == (0, 1)
    assert counted(looks((1021, seen()), (1022, seen(out=1000)), resumed_from=1020))[0] == 0


def test_outages_while_no_tainter_led_are_counted_once() -> None:
    after = seen((900, 1025), (1010, 1030), (1040, 1041), (10, 20))
    books = looks((1050, after), (1060, after), resumed_from=1020)
    assert counted(books) == (1, 2, 130 + 1)


def test_an_outage_that_goes_on_under_a_new_leader_has_its_whole_length() -> None:
    books = looks((1050, seen((900, 1025), out=1010)), (1060, seen((900, 1025), (1010, 1060))), resumed_from=1020)
    assert counted(books) == (0, 1, 160)


times = st.integers(-10_000, 10_000) | st.sampled_from([-START, -START + 1, LATEST - START])
records = st.builds(
    lambda ended, out: seen(*ended, out=out), st.lists(st.tuples(times, times), max_size=3), st.none() | times
)


@given(st.lists(st.tuples(st.integers(0, 1000), records), min_size=1, max_size=8))
def test_the_outages_of_a_node_never_add_up_to_more_than_the_time_that_has_passed(
    what: list[tuple[int, ObservedNode]],
) -> None:
    what = sorted(what, key=lambda each: each[0])
    began, ended, out = counted(looks(*what))
    assert 0 <= out <= what[-1][0]
    assert out < NEVER
    assert began <= ended + 1

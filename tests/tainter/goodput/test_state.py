"""The books as bytes."""

import random
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.goodput.ledger_bed import HOUR, START, advance, booked, fault, ledger, node, pod

from muster_tainter.goodput.books import DAYS_KEPT, HOURS_KEPT, OTHER, PLACES_LIMIT, TEAMS_LIMIT, Books
from muster_tainter.goodput.pods.pod_facts import End
from muster_tainter.goodput.report import By, make_report
from muster_tainter.goodput.state import SIZE_LIMIT, BadState, Gap, State, read_state, resume, snapshot, write_state

NOW = START + 5 * HOUR


def state() -> State:
    books = ledger()
    books.node_changed("n1", node(), START)
    books.pod_changed(pod(started=START), 0, 0, START)
    books.pod_changed(pod(started=START, ended=START + 1.5 * HOUR, end=End.OWN), 0, 0, START + 1.5 * HOUR)
    books.node_changed("n1", node(fault(START + 1.5 * HOUR)), START + 1.5 * HOUR)
    books.node_changed("n1", node(), START + 2.5 * HOUR)
    books.pod_changed(pod("p2", bound=START + 3 * HOUR, started=START + 3 * HOUR), 0, 0, START + 3 * HOUR)
    advance(books, NOW)
    return snapshot(books, [Gap(START - 60, START, 3600.0)])


def test_the_books_come_back_as_they_were() -> None:
    saved = state()
    assert read_state(write_state(saved), NOW) == saved
    again, risk = resume(saved, HOUR)
    assert snapshot(again, saved.gaps).buckets == saved.buckets
    assert sum(risk.values()) == pytest.approx(sum(each.at_risk for each in saved.risk))
    assert sum(booked(again).values()) > 0


def _broken(**fields: Any) -> bytes:
    return zlib.compress(msgspec.json.encode(msgspec.to_builtins(state()) | fields))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        write_state(state())[:-9],
        zlib.compress(b"[]"),
        zlib.compress(b" " * (33 << 20)),
        _broken(version=2),
        _broken(at=NOW + 1e9),
        _broken(since=-1.0),
        _broken(buckets=[[int(START) + 1, 3600, [], []]]),
        _broken(buckets=[[int(START), 3600, [["p", "m", {"work/magic": 1.0}]], []]]),
        _broken(buckets=[[int(START), 3600, [["p", "m", {"work/user": -1.0}]], []]]),
        _broken(buckets=[[int(START), 3600, [["p" * 300, "m", {}]], []]]),
        _broken(buckets=[[int(START), 3600, [], []]] * 2000),
        _broken(risk=[["p", "m", "t", -5.0]]),
        _broken(lemons={"n": [[1.0, "x", 1.0]] * 50}),
    ],
)
def test_bytes_that_are_not_the_books_are_refused(data: bytes) -> None:
    with pytest.raises(BadState):
        read_state(data, NOW)


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error_of_another_kind(data: bytes) -> None:
    for each in (data, zlib.compress(data)):
        try:
            read_state(each, NOW)
        except BadState:
            continue


def test_the_books_are_bounded_in_rows_time_and_bytes() -> None:
    books = ledger()
    for number in range(PLACES_LIMIT * 2):
        books.books.place(f"pool-{number}-{number * 7919 % 1000003}", f"model-{number}")
        books.books.team(f"team-{number}-{number * 104729 % 1000003}")
    assert (len(books.books.places), len(books.books.teams)) == (PLACES_LIMIT, TEAMS_LIMIT)
    assert books.books.places[-1].pool == books.books.teams[-1] == OTHER
    accounts = [f"work/{cause}" for cause in ("goodput", "user", "fault", "drain", "unknown", "overhead")]
    at = START
    for hour in range((DAYS_KEPT + 30) * 24):
        at = START + hour * HOUR
        if hour % 24 == 0 or hour > (DAYS_KEPT + 20) * 24:
            for place in range(PLACES_LIMIT):
                for i, name in enumerate(accounts):
                    books.books.count(place, name, at, 1000.1 * (hour % 97 + place * i))
            for i, name in enumerate(accounts):
                books.books.book(0, 3, name, at, at + HOUR, 1.0 + hour % 89 + i)
    books.books.roll_up(at)
    kept = list(books.books.buckets())
    assert len(kept) <= HOURS_KEPT + 24 + DAYS_KEPT + 1
    books.booked_until = at
    data = write_state(snapshot(books, ()))
    assert len(data) <= SIZE_LIMIT
    assert read_state(data, at).buckets


def test_too_many_bytes_lose_the_oldest_time_first() -> None:
    rng = random.Random(1)
    books = ledger()
    for number in range(PLACES_LIMIT):
        books.books.place(f"pool-{number}", "m")
    for hour in range(180):
        for place in range(PLACES_LIMIT):
            for name in ("work/goodput", "work/user", "work/fault", "node/idle", "node/fault", "work/drain"):
                books.books.count(place, name, START + hour * HOUR, rng.random() * 1e6)
    books.booked_until = START + 180 * HOUR
    whole = snapshot(books, ())
    data = write_state(whole, 200_000)
    assert len(data) <= 200_000
    left = read_state(data, books.booked_until).buckets
    assert left[-1].start == whole.buckets[-1].start
    assert len(left) < len(whole.buckets)


def test_hours_become_days_and_the_sums_stay() -> None:
    books = Books()
    place = books.place("p", "m")
    for hour in range(20 * 24):
        books.book(place, None, "node/idle", START + hour * HOUR, START + (hour + 1) * HOUR, 2.0)
    books.roll_up(START + 20 * 24 * HOUR)
    total = sum(row["node/idle"] for bucket in books.buckets() for row in bucket.rows.values())
    assert total == 2.0 * 20 * 24 * HOUR
    assert {bucket.length for bucket in books.buckets()} == {3600, 86400}


def test_the_report() -> None:
    report = make_report(state(), START, By.POOL)
    assert report.total.work == {"goodput": 16.0, "fault": 4.0}
    assert report.total.lost >= 4.0
    [row] = report.rows
    assert (row.name, row.total) == ("pool", report.total.total)
    [failures] = report.failures
    assert (failures.outages, failures.mttr, failures.interruptions) == (1, 1.0, {"fault": 1})
    assert (failures.mtbf, failures.mtbi) == (5.0, 2.0)
    [lemon] = report.lemons
    assert (lemon.node, lemon.outages, lemon.interruptions) == ("n1", 1, 1)
    assert [gap.vanished for gap in make_report(state(), 0.0).unobserved] in ([], [1.0])
    assert [each.name for each in make_report(state(), START, By.TEAM).rows] == ["team-a"]
    assert make_report(state(), NOW + HOUR).total.total == 0.0

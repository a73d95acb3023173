"""The books close, whatever happens in whatever order: random fleets, messages late, twice and out of order, and
leaders that stop at any time."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.goodput.ledger_bed import HOUR, START, advance, booked, fault, ledger, node, pod

from muster_tainter.goodput.causes import Cause, Side
from muster_tainter.goodput.ledger import Ledger, Risk
from muster_tainter.goodput.pods.attempt import SETTLE_S, Attempt
from muster_tainter.goodput.pods.attribution import FaultSpan
from muster_tainter.goodput.pods.pod_facts import End, PodFacts
from muster_tainter.goodput.state import read_state, resume, snapshot, write_state

DONE = START + 30 * HOUR
NODES = 3
ENDS = [end for end in End if end is not End.NONE]
seconds = st.integers(0, 4 * 3600)


@dataclass(frozen=True)
class Life:
    """What happened to a pod. runs: (seconds until its containers start, seconds that they run, how they end); only the
    last run may end the pod."""

    number: int
    bound: float
    runs: tuple[tuple[int, int, End], ...]
    fields: dict[str, Any]

    def messages(self) -> list[tuple[float, PodFacts]]:
        """(when, what the pod says from then on)."""
        made = pod(f"p{self.number}", bound=self.bound, **self.fields)
        found = [(self.bound, made)]
        at = self.bound
        for i, (wait, run, end) in enumerate(self.runs):
            at += wait
            made = msgspec.structs.replace(made, started=at)
            found.append((at, made))
            at += run
            if i < len(self.runs) - 1:
                made = msgspec.structs.replace(made, started=0.0, crashed=at, crash=end)
            else:
                made = msgspec.structs.replace(made, ended=at, end=end, crashed=0.0, crash=End.NONE)
            found.append((at, made))
        return found

    @property
    def held_s(self) -> float:
        return sum(wait + run for wait, run, _ in self.runs)


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        runs = draw(
            st.lists(st.tuples(seconds, st.integers(1, 4 * 3600), st.sampled_from(ENDS)), min_size=1, max_size=3)
        )
        fields = {
            "node": f"n{draw(st.integers(0, NODES - 1))}",
            "devices": draw(st.integers(1, 8)),
            "gang": draw(st.sampled_from(["", "team-a/Job/j"])),
            "service": draw(st.booleans()),
            "checkpoint": float(draw(st.sampled_from([0, 1, 60, 7200]))),
        }
        made.append(Life(number, START + draw(seconds), tuple(runs), fields))
    return made


@st.composite
def deliveries(draw: st.DrawFn, what: list[Life]) -> list[tuple[float, PodFacts]]:
    """Every message, late by up to a minute, in its pod's order; some again, later."""
    found: list[tuple[float, PodFacts]] = []
    for life in what:
        latest = 0.0
        for at, facts in life.messages():
            latest = max(latest, at + draw(st.integers(0, 60)))
            found.append((latest, facts))
            found += [(latest + draw(st.integers(0, 7200)), facts)] * draw(st.integers(0, 1))
    return sorted(found, key=lambda each: each[0])


faults = st.lists(st.tuples(st.integers(0, NODES - 1), seconds, st.booleans()), max_size=3)


def play(
    books: Ledger, messages: list[tuple[float, PodFacts]], broken: list[tuple[int, int, bool]], ticks: int
) -> Ledger:
    """Deliver everything, with ``ticks`` bookings in between."""
    events: list[tuple[float, int, Any]] = [(at, 1, facts) for at, facts in messages]
    events += [(START + at, 0, (number, START + at, incident)) for number, at, incident in broken]
    events += [(START + (i + 1) * (DONE - START) / (ticks + 1), 2, None) for i in range(ticks)]
    for number in range(NODES):
        books.node_changed(f"n{number}", node(), START)
    spans: dict[int, list[FaultSpan]] = {}
    for now, kind, what in sorted(events, key=lambda each: each[:2]):
        if kind == 0:
            number, at, incident = what
            spans.setdefault(number, []).append(fault(at, incident=incident))
            books.node_changed(f"n{number}", node(*spans[number]), now)
        elif kind == 1:
            assert isinstance(what, PodFacts)
            books.pod_changed(what, 0, 0, now)
        else:
            advance(books, now)
    advance(books, DONE)
    return books


def next_leader(first: Ledger, now: float) -> tuple[Ledger, Risk]:
    second, risk = resume(read_state(write_state(snapshot(first, ())), now), HOUR)
    second.books.place("pool", "H100")
    second.books.team("team-a")
    return second, risk


@given(st.data(), lives(), faults, st.integers(0, 30))
def test_every_second_of_every_pod_is_booked_once(
    data: st.DataObject, what: list[Life], broken: list[tuple[int, int, bool]], ticks: int
) -> None:
    books = play(ledger(), data.draw(deliveries(what)), broken, ticks)
    held = sum(life.held_s * life.fields["devices"] for life in what)
    assert abs(sum(booked(books).values()) - held) < 0.01
    assert not books.risk
    assert len(books.pods) == 0


@given(st.data(), lives(), faults)
def test_late_and_repeated_messages_change_nothing(
    data: st.DataObject, what: list[Life], broken: list[tuple[int, int, bool]]
) -> None:
    exact = play(ledger(), sorted((m for life in what for m in life.messages()), key=lambda m: m[0]), broken, 0)
    other = play(ledger(), data.draw(deliveries(what)), broken, data.draw(st.integers(0, 30)))
    for cause in Cause:
        assert abs(booked(exact)[cause] - booked(other)[cause]) < 0.01, cause


@given(st.data(), lives(), faults, st.integers(0, 30 * 3600), st.integers(0, 60))
def test_a_new_leader_goes_on_where_the_last_one_stopped(
    data: st.DataObject, what: list[Life], broken: list[tuple[int, int, bool]], stop: int, away: int
) -> None:
    """Pods that are still there lose nothing; without restarts in place, whose earlier runs their objects forget."""
    what = [replace(life, runs=life.runs[:1]) for life in what]
    messages = sorted((m for life in what for m in life.messages()), key=lambda m: m[0])
    whole = play(ledger(), messages, broken, 3)
    at = START + stop
    first = ledger()
    before, after = [m for m in messages if m[0] <= at], [m for m in messages if m[0] > at]
    for number in range(NODES):
        first.node_changed(f"n{number}", node(), START)
    spans = {
        number: [fault(START + begun, incident=incident) for n, begun, incident in broken if n == number]
        for number in range(NODES)
    }
    for now, facts in before:
        for number in range(NODES):
            seen = [span for span in spans[number] if span.began <= now]
            first.node_changed(f"n{number}", node(*seen), now)
        first.pod_changed(facts, 0, 0, now)
    for number in range(NODES):
        first.node_changed(f"n{number}", node(*[span for span in spans[number] if span.began <= at]), at)
    advance(first, at)
    second, risk = next_leader(first, at)
    begun = at + away
    for number in range(NODES):
        second.node_changed(f"n{number}", node(*[span for span in spans[number] if span.began <= begun]), begun)
    last = {facts.uid: facts for _, facts in before}
    last |= {facts.uid: facts for now, facts in after if now <= begun}
    for facts in last.values():
        second.pod_changed(facts, 0, 0, begun)
    vanished = second.book_vanished(risk, at)
    later = [(START + b, (n, i)) for n, b, i in broken if START + b > begun]
    rest: list[tuple[float, Any]] = [*(m for m in after if m[0] > begun), *later]
    for now, item in sorted(rest, key=lambda each: each[0]):
        if isinstance(item, PodFacts):
            second.pod_changed(item, 0, 0, now)
        else:
            second.node_changed(f"n{item[0]}", node(*[s for s in spans[item[0]] if s.began <= now]), now)
    advance(second, DONE)
    assert vanished < 1.0
    for cause in Cause:
        assert abs(booked(whole)[cause] - booked(second)[cause]) < 1.0, cause
    free = sum(booked(second, Side.NODE).values())
    assert free + sum(booked(second).values()) <= NODES * 8 * (DONE - START) + 8 * 3600 * 60


@given(st.data(), lives(), st.integers(0, 5 * 3600))
def test_how_much_is_booked_never_shrinks_and_needs_nothing_that_happened_later(
    data: st.DataObject, what: list[Life], at: int
) -> None:
    life = what[0]
    early = Attempt(life.messages()[0][1], 0, 0, HOUR, DONE)
    late = Attempt(life.messages()[0][1], 0, 0, HOUR, DONE)
    now = START + at + SETTLE_S
    for when, facts in replace(life, runs=life.runs[:1]).messages():
        late.follow(facts, DONE)
        if when <= START + at:
            early.follow(facts, DONE)
    assert early.firm_until(now) == late.firm_until(now)
    later = now + data.draw(seconds)
    assert late.firm_until(later) >= late.firm_until(now)


def test_pods_that_are_gone_without_a_trace_are_booked_as_unknown() -> None:
    first = ledger()
    first.pod_changed(pod("stays", started=START), 0, 0, START)
    first.pod_changed(pod("goes", started=START, devices=4), 0, 0, START)
    at = START + 1.5 * HOUR
    advance(first, at)
    second, risk = next_leader(first, at)
    second.pod_changed(pod("stays", started=START), 0, 0, at + 20)
    assert abs(second.book_vanished(risk, at) - 4 * 0.5 * HOUR) < 1.0
    assert abs(booked(second)[Cause.UNKNOWN] - 4 * 0.5 * HOUR) < 1.0

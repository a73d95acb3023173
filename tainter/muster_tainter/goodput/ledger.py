"""The ledger: observations of pods and nodes in, bookings out. Pure; the clock is a parameter."""

from collections import Counter
from collections.abc import Iterable, Iterator

from muster_tainter.goodput.books import DAY_S, DAYS_KEPT, Books, account
from muster_tainter.goodput.causes import Cause, Side
from muster_tainter.goodput.lemons import Lemons
from muster_tainter.goodput.node_books import NodeBooks
from muster_tainter.goodput.observed_node import ObservedNode
from muster_tainter.goodput.pod_books import PodBooks
from muster_tainter.goodput.pods.pod_facts import End, PodFacts

SLICE = 500  # runs or nodes, then other work may run

Risk = Counter[tuple[int, int]]
"""Accelerator-seconds that pods held and that are not booked yet, by indices of place and team."""


class Ledger:
    """checkpoint: seconds between two of pods that do not say. since: nothing before is booked. resumed_from: when a
    former leader booked last; 0: there was none. All in seconds since the epoch."""

    def __init__(self, checkpoint: float, since: float, resumed_from: float = 0.0) -> None:
        self.since = since
        self.booked_until = resumed_from or since
        self.resumed_from = resumed_from
        self.books = Books()
        self.lemons = Lemons()
        self.nodes = NodeBooks(self.books, self.lemons, since, resumed_from)
        self.pods = PodBooks(self.books, self.lemons, self.nodes, checkpoint, since, resumed_from)
        self.risk: Risk = Counter()

    def pod_changed(self, facts: PodFacts, place: int, team: int, now: float) -> None:
        self.pods.changed(facts, place, team, now)

    def pod_gone(self, uid: str, how: End, now: float) -> None:
        self.pods.gone(uid, how, now)

    def node_changed(self, name: str, observed: ObservedNode, now: float) -> None:
        self.nodes.changed(name, observed, now)
        self.pods.node_changed(name, observed.evidence)

    def node_gone(self, name: str, now: float) -> None:
        self.pods.node_changed(name, self.nodes.gone(name, now))

    def advance(self, now: float) -> Iterator[None]:
        """Book everything that is due at ``now``; yields now and then, so that others can work."""
        now = max(now, self.booked_until)
        risk: Risk = Counter()
        yield from _pauses(self.pods.settle_due(now))
        for number, attempt in enumerate(self.pods.advance(now)):
            left = attempt.at_risk(now)
            if left:
                risk[attempt.place, attempt.team] += left * attempt.devices  # type: ignore[assignment]
            if number % SLICE == SLICE - 1:
                yield
        yield from _pauses(self.nodes.advance(now))
        self.risk, self.booked_until = risk, now
        self.books.roll_up(now)
        self.lemons.forget(now - DAYS_KEPT * DAY_S)

    def risk_at(self, at: float) -> Risk:
        """What the runs that are known now had at risk when a former leader stopped."""
        risk: Risk = Counter()
        for attempt in self.pods.runs():
            left = min(attempt.ended or at, at) - max(attempt.mark, self.since)
            if left > 0 and attempt.bound < at:
                risk[attempt.place, attempt.team] += left * attempt.devices  # type: ignore[assignment]
        return risk

    def book_vanished(self, former: Risk, at: float) -> float:
        """Book what runs had at risk that are gone without a trace, since nobody knows how they ended. ``former``: the
        last :attr:`risk` of the former leader, at ``at``. Call it once, before the first advance, when all pods are
        known. Returns accelerator-seconds."""
        known, total = self.risk_at(at), 0.0
        for key, before in former.items():
            gone = before - known.get(key, 0)
            if gone > 0.5:
                place, team = key
                self.books.book(place, team, account(Side.WORK, Cause.UNKNOWN), at - 1.0, at, gone)
                total += gone
        return total


def _pauses(steps: Iterable[None]) -> Iterator[None]:
    """Yields after every SLICE of them."""
    for number, _ in enumerate(steps):
        if number % SLICE == SLICE - 1:
            yield

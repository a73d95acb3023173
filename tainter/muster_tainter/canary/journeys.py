"""Where the canary of each node is: when it was delivered and decided, and which hop keeps the next one. Pure, but for
what it remembers of this leadership.
"""

import hashlib
import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from muster_kube.nodehealth import NodeHealth
from muster_tainter.canary.trial import Arrival, Outcome


class State(StrEnum):
    """Of a node that sends canaries.

    WAITING:  too early to say. The values of Arrival: how the last one ended
    The others name the hop that keeps a canary which is late.
    AGENT:      no agent reports for the node
    KERNEL_LOG: the agent has not read a line that it wrote into the kernel log
    REPORT:     the agent's report: no new canary has been delivered to the tainter
    DECISION:   a delivered canary has not been decided
    """

    WAITING = "waiting"
    AGENT = "agent"
    KERNEL_LOG = "kernel-log"
    REPORT = "report"
    DECISION = "decision"


PERIODS = 1.5  # without a canary, until it is late: so that a scrape later two have not passed
UNDECIDED_PERIODS = PERIODS - 1.0  # until a delivered one is late: a period may pass before one meets the broken hop


@dataclass(frozen=True)
class Journey:
    """The last canary of a node. at: as the agent has published it; times: monotonic seconds, 0.0 for not yet.

    undecided_since: when the first canary since the last decision was delivered: this one or one before it
    """

    at: str
    id: str
    delivered: float
    undecided_since: float
    decided: float = 0.0
    outcome: Outcome | None = None


def choose_nodes(names: Iterable[str], number: int) -> frozenset[str]:
    """``number`` of the names. A node that joins or leaves changes the choice by at most one other node."""
    return frozenset(heapq.nsmallest(number, names, key=lambda name: (hashlib.sha256(name.encode()).digest(), name)))


class Journeys:
    """The canaries of one leadership. Bounded by the nodes of the fleet."""

    def __init__(self) -> None:
        self.expected: dict[str, float] = {}
        """Nodes that send canaries, and since when they are expected to, in monotonic seconds."""
        self._last: dict[str, Journey] = {}

    def reset(self) -> None:
        """A leadership begins."""
        self.expected.clear()
        self._last.clear()

    def expect(self, names: Collection[str], now: float) -> None:
        self.expected = {name: self.expected.get(name, now) for name in names}

    def forget(self, name: str) -> None:
        self.expected.pop(name, None)
        self._last.pop(name, None)

    def last(self, name: str) -> Journey | None:
        return self._last.get(name)

    def deliver(self, name: str, old: NodeHealth | None, new: NodeHealth, now: float) -> bool:
        """A NodeHealth has changed. True if it brings a canary."""
        at = new.status.canary.at
        if old is None or not at or at == old.status.canary.at:
            return False
        before = self._last.get(name)
        since = before.undecided_since if before is not None and before.outcome is None else now
        self._last[name] = Journey(at, new.status.canary.id, delivered=now, undecided_since=since)
        return True

    def is_pending(self, name: str) -> bool:
        known = self._last.get(name)
        return known is not None and known.outcome is None

    def decide(self, name: str, outcome: Outcome, now: float) -> None:
        known = self._last[name]
        self._last[name] = replace(known, decided=now, outcome=outcome)

    def state(self, name: str, period_s: float, now: float, *, reports: bool, unread: bool = False) -> State | Arrival:
        """Of an expected node. now: monotonic seconds; reports: an agent runs there; unread: it has reported that the
        canary after the last one got no further than the kernel log."""
        known = self._last.get(name)
        since = max(self.expected[name], known.delivered if known is not None else 0.0)
        if known is not None and known.outcome is None and now - known.undecided_since > UNDECIDED_PERIODS * period_s:
            return State.DECISION
        if unread and reports:
            return State.KERNEL_LOG
        if now - since <= PERIODS * period_s:
            return known.outcome.arrival if known is not None and known.outcome is not None else State.WAITING
        return State.REPORT if reports else State.AGENT

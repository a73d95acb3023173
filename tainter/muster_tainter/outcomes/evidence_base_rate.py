"""Kinds that no tenant controls: how often attempts on a healthy node may fail, from the other nodes' past.

Such a failure needs no comparison within an owner, so the claim to be tested is about a rate: given all
that came before, an attempt on a healthy node fails with at most the chance

    p = max(FLOOR, 2 * past, 2 * present)

past: (failures + PRIOR * PRIOR_ATTEMPTS) / (attempts + PRIOR_ATTEMPTS) on the other nodes; old ones fade
over a week.
present: (failing + PRIOR * PRIOR_NODES) / (nodes + PRIOR_NODES), of the other nodes that had an attempt
within an hour; failing: those whose last attempt failed. It rises at once when something breaks the whole
fleet, and a node that rejects hundreds of pods counts once. Nodes that are proven to be bad do not count.

If the rate under an alternative is q > p, a failure has the factor q / p and a success (1 - q) / (1 - p).
Their mean is at most 1 for every chance up to p, so attempts may depend on each other as long as that
holds.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S

RATES = (0.95, 0.5, 0.1)
RATE_WEIGHTS = (0.5, 0.25, 0.25)
"""q: a node that rejects everything, as in pytorch/ci-infra 1058; half; now and then."""

FLOOR = 0.01
"""Kubernetes promises that 99 % of pods start in time (SIG Scalability, pod startup latency SLO)."""

TOLERANCE = 2.0
"""Healthy nodes differ: one that fails up to twice as often as the others is not a finding."""

PRIOR = FLOOR / TOLERANCE  # without any history p is FLOOR

PRIOR_ATTEMPTS = 100.0
"""The least number of attempts that can show a rate of 1 %."""

PRIOR_NODES = 10.0
"""One failing node among four others may be another bad node (p = 15 %); four of four are a broken fleet (p = 58 %)."""


@dataclass(slots=True)
class FadingCount:
    failures: float = 0.0
    attempts: float = 0.0
    at: float = -math.inf

    def fade(self, now: float) -> None:
        if now > self.at:
            kept = math.exp((self.at - now) / WEEK_S)
            self.failures *= kept
            self.attempts *= kept
            self.at = now


class BaseRate:
    """Of one kind, over the fleet. nodes: bound on how many are known separately."""

    def __init__(self, nodes: int) -> None:
        self._limit = nodes
        self._all = FadingCount()
        self._nodes: OrderedDict[str, FadingCount] = OrderedDict()  # the one with the oldest attempt first
        self._recent: OrderedDict[str, tuple[float, bool]] = OrderedDict()  # node -> last attempt, failed
        self._failing = 0

    def of_healthy(self, node: str, now: float) -> float:
        """The largest chance with which an attempt on ``node`` may fail, from the attempts on all others."""
        self._drop_old(now)
        self._all.fade(now)
        own = self._nodes.get(node) or FadingCount()
        own.fade(now)
        failures = max(self._all.failures - own.failures, 0.0)
        attempts = max(self._all.attempts - own.attempts, failures)
        past = (failures + PRIOR * PRIOR_ATTEMPTS) / (attempts + PRIOR_ATTEMPTS)
        _, fails = self._recent.get(node, (0.0, False))
        others = len(self._recent) - (node in self._recent)
        present = (self._failing - fails + PRIOR * PRIOR_NODES) / (others + PRIOR_NODES)
        return min(max(FLOOR, TOLERANCE * past, TOLERANCE * present), 1.0)

    def add(self, node: str, failed: bool, at: float) -> None:
        own = self._nodes.setdefault(node, FadingCount())
        self._nodes.move_to_end(node)
        for count in (own, self._all):
            count.fade(at)
            count.failures += failed
            count.attempts += 1
        self._forget_present(node)
        self._recent[node] = (at, failed)
        self._failing += failed
        if len(self._nodes) > self._limit:
            self._nodes.popitem(last=False)
        if len(self._recent) > self._limit:
            self._forget_present(next(iter(self._recent)))

    def leave_out(self, node: str) -> None:
        """Of a node that is proven to be bad, or is gone, nothing counts for the others any more."""
        self._forget_present(node)
        if own := self._nodes.pop(node, None):
            own.fade(self._all.at)
            self._all.failures = max(self._all.failures - own.failures, 0.0)
            self._all.attempts = max(self._all.attempts - own.attempts, 0.0)

    def _forget_present(self, node: str) -> None:
        _, failed = self._recent.pop(node, (0.0, False))
        self._failing -= failed

    def _drop_old(self, now: float) -> None:
        while self._recent:
            node, (at, _) = next(iter(self._recent.items()))
            if now - at < HOUR_S:
                return
            self._forget_present(node)


def factors(rate: float, failed: bool) -> tuple[float, ...]:
    """rate: p. One for each of RATES; 1 where the alternative is not above p."""
    if failed:
        return tuple(q / rate if q > rate else 1.0 for q in RATES)
    return tuple((1 - q) / (1 - rate) if q > rate else 1.0 for q in RATES)

"""An e-detector: a value that is large only if outcomes are unlikely without a cause, at every time it is
looked at.

Each outcome x multiplies the value by a *factor* f(x) that is fair without a cause: its expectation, given
all that came before, is at most 1. A product of such factors is a test martingale: by Ville's inequality
(1939) the chance that it ever reaches A is at most 1 / A, however often one looks (Ramdas, Gruenwald, Vovk
and Shafer, Game-theoretic statistics and safe anytime-valid inference, Statistical Science 38, 2023).

One product would have to win back all that it lost while the node was well. So capital comes in over time,
one unit a week, and each piece starts a product of its own with the next outcome:

    V <- (V * exp(-d / week) + min(d, hour) / week) * f(x)        d: time since the last outcome

V is the sum of these products (the e-detector of Shin, Ramdas and Rinaldo, E-detectors, NEJSDS 2, 2023,
whose first form is that of Shiryaev and Roberts, Technometrics 8, 1966). The factors create no capital and
each alarm takes A out, so

    E[number of alarms in a time T] * A <= capital that came in <= T / week

exp(-d / week) forgets old evidence. What is forgotten, cut off or not counted only makes V smaller.
"""

import math
from collections.abc import Iterable, Sequence

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S

NAMESPACES = 8
"""Of a detector, whose growth is known separately. More namespaces than that add nothing to a tenant's kind."""

LARGEST = 1e100  # a single tenant may raise the value without end; it proves nothing


class Detector:
    """Of one node and kind.

    weights: of the alternatives between which each piece of capital is divided; their sum is 1.
    begin: capital comes in from this time on, in seconds; -inf: the first outcome brings an hour's.
    failed_at: when the last failure that counted ended.
    """

    __slots__ = ("attempts", "bets", "expected", "failed_at", "failures", "growth", "last", "proven", "run", "since")

    def __init__(self, weights: Sequence[float], begin: float) -> None:
        self.bets = [0.0] * len(weights)
        self.last = begin
        self.failed_at = -math.inf
        self.growth: dict[str, float] = {}
        self.proven = False
        self.run = 0.0
        self._clear_counts(0.0)

    def _clear_counts(self, since: float) -> None:
        self.attempts, self.failures, self.expected, self.since = 0, 0, 0.0, since

    @property
    def value(self) -> float:
        return sum(self.bets)

    def restart(self) -> None:
        """Gives up all evidence. Time that has brought capital in does not bring it in again."""
        self.bets = [0.0] * len(self.bets)
        self.growth.clear()
        self.proven = False
        self.run = 0.0
        self._clear_counts(self.last)

    def let_time_pass(self, at: float, weights: Sequence[float]) -> None:
        """A time before the last one changes nothing; a jump forward brings in at most an hour's capital."""
        passed = at - self.last
        if passed <= 0:
            return
        kept, capital = math.exp(-passed / WEEK_S), min(passed, HOUR_S) / WEEK_S
        self.bets = [bet * kept + capital * weight for bet, weight in zip(self.bets, weights, strict=True)]
        faded = min(passed / WEEK_S, LARGEST)
        for namespace, growth in list(self.growth.items()):
            if growth > faded:
                self.growth[namespace] = growth - faded
            else:
                del self.growth[namespace]
        self.last = at

    def multiply(self, factors: Iterable[float], namespace: str, needs_witnesses: bool) -> float:
        """factors: one for each alternative. Returns by what the value was multiplied.

        ``growth`` has, for each namespace, the logarithm of the most that its factors have multiplied any piece of
        capital by (Page's recursion: max(0, growth + log f)).
        """
        before = self.value
        bets = [bet * factor for bet, factor in zip(self.bets, factors, strict=True)]
        after = sum(bets)
        if before <= 0 or after <= 0:
            self.bets = bets
            self.growth.pop(namespace, None)
            return 0.0
        unknown = namespace not in self.growth and len(self.growth) >= NAMESPACES
        limit = before if unknown and needs_witnesses else LARGEST
        if after > limit:
            bets = [bet * (limit / after) for bet in bets]
            after = limit
        self.bets = bets
        log = math.log(after / before)
        if not unknown:
            growth = self.growth.get(namespace, 0.0) + log
            if growth > 0:
                self.growth[namespace] = growth
            else:
                self.growth.pop(namespace, None)
        return after / before

    def count(self, failed: bool, expected: float, factor: float, at: float) -> None:
        """For people: the stretch of outcomes that speaks most against the node (Page, Biometrika 41, 1954)."""
        if self.run <= 0:
            self._clear_counts(at)
        self.run = max(self.run + math.log(factor), 0.0) if factor > 0 else 0.0
        self.attempts += 1
        self.failures += failed
        self.expected += expected

    def has_witnesses(self, threshold: float) -> bool:
        """Without the namespace that adds most, the others bring at least half of the evidence, in logarithms."""
        growths = self.growth.values()
        return sum(growths) - max(growths, default=0.0) >= math.log(threshold) / 2

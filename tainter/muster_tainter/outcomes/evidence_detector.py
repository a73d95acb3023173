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

Where a tenant may cause the failures, the value is the smallest of V and, for each namespace a, of V
without the factors of a's pods. So the bound holds even if one namespace does what it likes.
"""

import math
from collections.abc import Sequence

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S

NAMESPACES = 8
"""Whose factors a detector knows apart. When one more comes, the one that adds least is taken out of V."""

LARGEST = 1e100  # one tenant may raise V without end; it proves nothing

Bets = list[float]


class Detector:
    """Of one node and kind.

    weights: of the alternatives between which each piece of capital is divided; their sum is 1.
    begin: capital comes in from this time on, in seconds; -inf: the first outcome brings an hour's.
    distrust: a tenant may cause this kind.
    failed_at: when the last failure that counted ended.
    """

    __slots__ = (
        "attempts", "bets", "distrust", "expected", "failed_at", "failures", "last", "namespaces", "proven", "run",
        "since", "weights", "without",
    )  # fmt: skip

    def __init__(self, weights: Sequence[float], begin: float, distrust: bool) -> None:
        self.weights, self.distrust = weights, distrust
        self.last, self.failed_at = begin, -math.inf
        self.bets: Bets = []
        self.without: dict[str, Bets] = {}
        self.namespaces: frozenset[str] = frozenset()
        self.restart()

    def restart(self) -> None:
        """Gives up all evidence. Time that has brought capital in does not bring it in again."""
        self.bets = [0.0] * len(self.weights)
        self.without = {}
        self.proven = False
        self.run = 0.0
        self._clear_counts(self.last)

    @property
    def value(self) -> float:
        return min(map(sum, (self.bets, *self.without.values())))

    def let_time_pass(self, at: float) -> None:
        """A time before the last one changes nothing; a jump forward brings in at most an hour's capital."""
        passed = at - self.last
        if passed <= 0:
            return
        kept, capital = math.exp(-passed / WEEK_S), min(passed, HOUR_S) / WEEK_S
        for bets in (self.bets, *self.without.values()):
            bets[:] = [bet * kept + capital * weight for bet, weight in zip(bets, self.weights, strict=True)]
        self.last = at

    def multiply(self, factors: Sequence[float], namespace: str) -> float:
        """factors: one for each alternative. Returns by what V was multiplied."""
        if self.distrust and namespace not in self.without:
            if len(self.without) >= NAMESPACES:
                self._take_out_least()
            self.without[namespace] = list(self.bets)
        before = sum(self.bets)
        for bets in (self.bets, *(each for name, each in self.without.items() if name != namespace)):
            bets[:] = [bet * factor for bet, factor in zip(bets, factors, strict=True)]
            if (total := sum(bets)) > LARGEST:
                bets[:] = [bet * (LARGEST / total) for bet in bets]
        return sum(self.bets) / before if before > 0 else 0.0

    def _take_out_least(self) -> None:
        """Only lowers V, and so never lets a namespace prove more than it could."""
        least = max(self.without, key=lambda name: sum(self.without[name]))
        self.bets = list(map(min, self.bets, self.without.pop(least)))

    def count(self, failed: bool, expected: float, factor: float, at: float, namespace: str) -> None:
        """For people: the stretch of outcomes that speaks most against the node (Page, Biometrika 41, 1954)."""
        if self.run <= 0:
            self._clear_counts(at)
        self.run = max(self.run + math.log(factor), 0.0) if factor > 0 else 0.0
        self.attempts += 1
        self.failures += failed
        self.expected += expected
        if failed and len(self.namespaces) < NAMESPACES:
            self.namespaces |= {namespace}

    def _clear_counts(self, since: float) -> None:
        self.attempts, self.failures, self.expected, self.since = 0, 0, 0.0, since
        self.namespaces = frozenset()

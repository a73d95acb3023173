"""How long it takes to prove that a simulated node is bad, beside the best that is possible with the same bound.

The figures of docs/in-flight.md: .venv/bin/python -m tests.tainter.outcomes.detection
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from statistics import median

from tests.tainter.outcomes.simulated_fleets import DAY_S, EXITED, REJECTED, BadNode, Fleet, Owner, settings

from muster_tainter.outcomes.evidence import HOUR_S, Attempt, EvidenceSettings, Verdict
from muster_tainter.outcomes.evidence_detector import Detector
from muster_tainter.outcomes.evidence_tracker import EvidenceTracker

NODES = tuple(f"n{number}" for number in range(20))
BAD = NODES[3]
SINCE_S, DAYS = 2 * DAY_S, 16.0


def proofs(fleet: Fleet, random: Random, days: float, limits: EvidenceSettings) -> Iterator[tuple[Attempt, Verdict]]:
    """The proofs, each with the attempt at which it came. Evidence starts anew after each."""
    tracker, advanced = EvidenceTracker(limits), 0.0
    for attempt in fleet.attempts(random, days):
        found = tracker.add(attempt)
        if attempt.at > advanced + 60:
            found += tracker.advance(attempt.at)
            advanced = attempt.at
        for each in found:
            yield attempt, each
            tracker.restart(each.node, each.kind)


@dataclass(frozen=True)
class Oracle:
    """Knows the node, since when it is bad, and how often pods fail with and without; it sees every end at once.

    Its factor is the likelihood ratio, which no fair factor beats in the mean of the logarithm (Kelly, 1956). It has
    the capital and the threshold of the test.
    """

    bad: float
    base: float

    def factor(self, failed: bool) -> float:
        chance = 1 - (1 - self.bad) * (1 - self.base)
        return chance / self.base if failed else (1 - chance) / (1 - self.base)

    def attempts(self, results: list[tuple[float, bool]], threshold: float) -> int | None:
        """results: (time, failed) of each attempt on the node since it is bad."""
        detector = Detector((1.0,), -math.inf, distrust=False)
        for number, (at, failed) in enumerate(results, 1):
            detector.let_time_pass(at)
            detector.multiply((self.factor(failed),), "")
            if detector.value >= threshold:
                return number
        return None


def fleet(kind: str, rate: float, base: float, namespaces: int) -> Fleet:
    """12 owners, 8 pods every 4 hours each: about 29 attempts on a node a day."""
    owners = tuple(
        Owner(f"o{number}", f"ns{number % namespaces}", rate=base, run_s=600.0) for number in range(12)
    )  # fmt: skip
    return Fleet(NODES, owners, {BAD: BadNode(kind, rate, SINCE_S)}, rejected=0.001)


@dataclass(frozen=True)
class Delay:
    """attempts, failures: on the bad node until it is proven. best: attempts that the oracle takes."""

    hours: float
    attempts: int
    failures: int
    best: int | None


def delay(kind: str, rate: float, base: float, namespaces: int, seed: int) -> Delay | None:
    """None: not proven in two weeks."""
    random, limits = Random(seed), settings()
    world = fleet(kind, rate, base, namespaces)
    seen = [
        (each.at, each.failed and each.kind == kind)
        for each in world.attempts(Random(seed), DAYS)
        if each.node == BAD and each.started >= SINCE_S
    ]
    best = Oracle(rate, base if kind == EXITED else world.rejected).attempts(seen, limits.threshold)
    for attempt, proof in proofs(world, random, DAYS, limits):
        if (proof.node, proof.kind) == (BAD, kind) and attempt.at >= SINCE_S:
            until = [failed for at, failed in seen if at <= attempt.at]
            return Delay((attempt.at - SINCE_S) / HOUR_S, len(until), sum(until), best)
    return None


CASES = [
    *((REJECTED, rate, 0.01, 6) for rate in (1.0, 0.5, 0.2, 0.1)),
    *((EXITED, rate, base, namespaces) for namespaces in (6, 2) for rate in (1.0, 0.5, 0.2) for base in (0.01, 0.1)),
]


def main(seeds: int = 30) -> None:
    for kind, rate, base, namespaces in CASES:
        found = [delay(kind, rate, base, namespaces, seed) for seed in range(seeds)]
        known = [each for each in found if each]

        def middle(of: Callable[[Delay], float], known: list[Delay] = known) -> str:
            return f"{median(map(of, known)):6.1f}" if known else "     -"

        print(
            f"{kind:17} bad {rate:4.0%} others {base:4.0%} namespaces {namespaces}: {len(known)} of {seeds} proven;",
            f"hours {middle(lambda each: each.hours)}, attempts {middle(lambda each: each.attempts)},",
            f"failures {middle(lambda each: each.failures)}; best {middle(lambda each: each.best or math.inf)}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""How often a healthy node is blamed where the assumptions of the test do not hold. Fleets are followed for two weeks.

The figures of docs/in-flight.md: .venv/bin/python -m tests.tainter.outcomes.robustness
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.tainter.outcomes.detection import NODES
from tests.tainter.outcomes.simulated_fleets import DAY_S, EXITED, HOST_KINDS, Owner, settings
from tests.tainter.outcomes.simulated_fleets import Fleet as _Fleet

from muster_tainter.outcomes.evidence import HOUR_S, WEEK_S, YEAR_S, Attempt
from muster_tainter.outcomes.evidence_base_rate import FLOOR, RATE_WEIGHTS, factors
from muster_tainter.outcomes.evidence_detector import Detector
from muster_tainter.outcomes.evidence_tracker import EvidenceTracker

DAYS = 14.0
ODD = NODES[3]  # the node that differs for a reason that is not its own

Change = Callable[[Attempt], Attempt]


def unchanged(attempt: Attempt) -> Attempt:
    return attempt


def clock_is_behind(by_s: float) -> Change:
    return lambda attempt: replace(attempt, at=attempt.at - by_s) if attempt.node == ODD else attempt


def owners(count: int, namespaces: int, **more: object) -> tuple[Owner, ...]:
    made = (Owner(f"o{number}", f"ns{number % namespaces}") for number in range(count))
    return tuple(replace(each, **more) for each in made)  # type: ignore[arg-type]  # fields of Owner


def odd(rate: float, others: float, namespaces: int, nodes: tuple[str, ...] = (ODD,)) -> tuple[Owner, ...]:
    """An owner in each namespace, whose pods fail at another rate on some nodes."""
    rates = dict.fromkeys(nodes, rate)
    return owners(namespaces, namespaces, width=16, every_s=2 * HOUR_S, rate=others, rates=rates)


def first_try_here(random: Random) -> list[Attempt]:
    """Six flaky owners, in three namespaces: all begin on the odd node, one pod at a time, and retry elsewhere."""
    found = []
    for number in range(6):
        at = 0.0
        while at < DAYS * DAY_S:
            node = ODD
            while True:
                fails = random.random() < 0.5
                ended = at + random.uniform(60, 600)
                kind = EXITED if fails else ""
                uid = f"{random.getrandbits(64):x}"
                found.append(Attempt(node, f"o{number}", f"ns{number % 3}", kind, fails, ended, at, uid, HOST_KINDS))
                at = ended + 1
                if not fails:
                    break
                node = random.choice([each for each in NODES if each != ODD])
            at += random.expovariate(1 / HOUR_S)
    return sorted(found, key=lambda attempt: attempt.at)


def simulated(of: tuple[Owner, ...], change: Change = unchanged) -> Callable[[Random], list[Attempt]]:
    def attempts(random: Random) -> list[Attempt]:
        return [change(each) for each in _Fleet(NODES, of).attempts(random, DAYS)]

    return attempts


CASES: dict[str, Callable[[Random], list[Attempt]]] = {
    "one owner's pods fail 25 times as often on one node (a role, a rank)": simulated(odd(0.5, 0.02, 1)),
    "the same for owners in two namespaces": simulated(odd(0.5, 0.02, 2)),
    "twice as often (10 %, 5 %), two namespaces": simulated(odd(0.1, 0.05, 2)),
    "half of the nodes are of a type on which 30 % fail, not 2 %; two namespaces": simulated(
        odd(0.3, 0.02, 2, NODES[:10])
    ),
    "one node is of such a type": simulated(odd(0.3, 0.02, 2)),
    "flaky owners begin on one node and retry elsewhere": first_try_here,
    "a node's clock is 8 s behind; gangs, 30 % of pods fail": simulated(
        owners(6, 3, gang=True, rate=0.3), clock_is_behind(8.0)
    ),
    "a node's clock is 60 s behind; gangs, 30 % of pods fail": simulated(
        owners(6, 3, gang=True, rate=0.3), clock_is_behind(60.0)
    ),
    "an attacker with one namespace; other owners are flaky (30 %)": simulated(
        (*owners(6, 3, rate=0.3), Owner("x", "attacker", width=20, every_s=HOUR_S, rate=0.0, rates={ODD: 1.0}))
    ),
    "an attacker with two namespaces": simulated(odd(1.0, 0.0, 2)),
}


def first_blame(attempts: list[Attempt]) -> float | None:
    """Hours until the odd node is proven to be bad."""
    tracker, advanced = EvidenceTracker(settings()), 0.0
    for attempt in attempts:
        found = tracker.add(attempt)
        if attempt.at > advanced + 60:
            found += tracker.advance(attempt.at)
            advanced = attempt.at
        if any(each.node == ODD for each in found):
            return attempt.at / HOUR_S
    return None


def alarms_at_the_limit(node_years: float, pods_a_day: float) -> int:
    """Proofs about one node whose attempts fail at exactly the rate that a healthy node may have, with a bound of 1."""
    random, threshold = Random(1), YEAR_S / WEEK_S
    detector, at, alarms = Detector(RATE_WEIGHTS, -math.inf, distrust=False), 0.0, 0
    while at < node_years * YEAR_S:
        at += random.expovariate(pods_a_day / DAY_S)
        detector.let_time_pass(at)
        detector.multiply(factors(FLOOR, random.random() < FLOOR), "")
        if detector.value >= threshold:
            alarms += 1
            detector.restart()
    return alarms


def main(fleets: int = 30) -> None:
    for name, attempts in CASES.items():
        blames = sorted(each for seed in range(fleets) if (each := first_blame(attempts(Random(seed)))))
        middle = f", after {blames[len(blames) // 2]:.0f} hours in the middle" if blames else ""
        print(f"{name}: {len(blames)} of {fleets}{middle}", flush=True)
    print(f"at exactly the healthy rate, bound 1: {alarms_at_the_limit(55, 30)} proofs in 55 node-years")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

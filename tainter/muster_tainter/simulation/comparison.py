"""Measures of runs, with bootstrap intervals, and whether the data can tell two policies apart.

Each policy is run on the fleet as it is, and on resampled fleets: fleets of the same size, whose nodes (or failure
domains) are drawn from it with replacement together with their fault histories (Efron and Tibshirani, An Introduction
to the Bootstrap, 1993, chapters 6 and 12). All policies meet the same resampled fleets, the same jobs and the same
luck, so their difference is taken fleet by fleet: what is common to both cancels out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import NamedTuple

from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.ledger import Cause
from muster_tainter.simulation.outcome import Outcome
from muster_tainter.simulation.run import Scenario, replan, simulate

REPLICATES = 25  # "usually informative" for a standard error (section 6.4); percentiles would need a thousand
REPLICATES_LEAST = 5
_Z = 1.959964  # of the normal distribution, for 95 %


@dataclass(frozen=True)
class Measure:
    """unit: ``%``, ``h`` or empty. digits: for people. higher: whether more is better; None: neither."""

    name: str
    title: str
    of: Callable[[Outcome], float | None]
    unit: str = ""
    digits: int = 0
    higher: bool | None = None


def _lost(cause: Cause) -> Callable[[Outcome], float]:
    return lambda outcome: outcome.hours[cause]


_LOST_TITLES = {
    Cause.FAULT: "lost to broken hardware",
    Cause.HOLD: "lost to hold-down",
    Cause.TEST: "lost to tests after a repair",
    Cause.DRAIN: "lost to drains",
    Cause.REWORK: "lost to re-work",
    Cause.WAIT: "free while jobs waited",
    Cause.SPARE: "kept as spares",
    Cause.OVERHEAD: "starts and checkpoints",
    Cause.IDLE: "idle without demand",
}
GOODPUT = Measure("goodput", "goodput", lambda outcome: 100 * outcome.goodput, "%", 2, higher=True)
INTERRUPTIONS = Measure("interruptions", "interruptions", lambda outcome: outcome.interruptions, higher=False)
KEPT_OUT = Measure(
    "keptOut", "working accelerators kept out", lambda outcome: 100 * outcome.kept_out_h / outcome.total_h, "%", 3,
    higher=False,
)  # fmt: skip
MEASURES: tuple[Measure, ...] = (
    GOODPUT,
    Measure("ettr", "effective training time ratio", lambda outcome: 100 * outcome.ettr, "%", 2, higher=True),
    INTERRUPTIONS,
    Measure("mtbi", "mean time between interruptions of a job", lambda outcome: outcome.mtbi_h, "h", 0, higher=True),
    *(
        Measure(str(cause), title, _lost(cause), "h", 0, higher=None if cause is Cause.IDLE else False)
        for cause, title in _LOST_TITLES.items()
    ),
    KEPT_OUT,
    Measure("mostOut", "most accelerators out at once", lambda outcome: outcome.most_out),
    Measure("refusals", "taints withheld by a budget", lambda outcome: outcome.tally.refusals),
    Measure("repairs", "repairs begun by the policy", lambda outcome: outcome.tally.repairs),
    Measure("isolated", "accelerators kept out without their node", lambda outcome: outcome.tally.isolated),
    Measure("tests", "planned heavy checks", lambda outcome: outcome.tally.tests),
    Measure("found", "hidden faults that they found", lambda outcome: outcome.tally.found),
)


class Estimate(NamedTuple):
    """value: of the fleet as it is. low, high: 95 % interval; None without resampled fleets. None: not defined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def tells_apart(self) -> bool:
        """Of a difference: whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def runs(policies: int, replicates: int) -> list[tuple[int, int]]:
    """(number of the policy, replicate) of every run; replicate 0 is the fleet as it is."""
    return [(policy, replicate) for replicate in range(replicates + 1) for policy in range(policies)]


class Case(NamedTuple):
    """What is compared. planned: how often heavy checks are due, in seconds, instead of what the fleet file says of
    them; None: never."""

    policy: Policy
    planned: Mapping[str, float | None] = {}


def run_one(scenario: Scenario, cases: Sequence[Case], which: tuple[int, int]) -> Outcome:
    policy, planned = cases[which[0]]
    return simulate(replan(scenario, planned), policy, which[1])


def estimate(outcomes: Sequence[Outcome], measure: Measure) -> Estimate:
    """outcomes: of one policy, the fleet as it is first."""
    return _estimate([measure.of(outcome) for outcome in outcomes])


def difference(ours: Sequence[Outcome], others: Sequence[Outcome], measure: Measure) -> Estimate:
    """``ours`` less ``others``, fleet by fleet."""
    pairs = [(measure.of(our), measure.of(other)) for our, other in zip(ours, others, strict=True)]
    return _estimate([None if our is None or other is None else our - other for our, other in pairs])


def _estimate(values: Sequence[float | None]) -> Estimate:
    value, resampled = values[0], [each for each in values[1:] if each is not None]
    if value is None or len(resampled) < REPLICATES_LEAST:
        return Estimate(value)
    half = quantile_t(len(resampled) - 1) * stdev(resampled)
    return Estimate(value, value - half, value + half)


def quantile_t(freedom: int) -> float:
    """The 97.5 % point of Student's t, by the expansion of Fisher and Cornish (1960); within 1 % from 4 degrees on."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3

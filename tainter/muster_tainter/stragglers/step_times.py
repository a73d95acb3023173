"""Step times of a job: which ranks are slow?"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from muster_tainter.stragglers.excess import Row, log_excess
from muster_tainter.stragglers.permutation import slow_rows
from muster_tainter.stragglers.verdict import NODE, TESTED, Blame, Cause, Verdict


@dataclass(frozen=True)
class StepTimes:
    """seconds: a row for each rank, a column for each step, all above 0; ranks and steps rise."""

    ranks: Sequence[int]
    steps: Sequence[int]
    seconds: Sequence[Row]


def judge_step_times(times: StepTimes, random: Random, *, looks: int = 1) -> Verdict:
    """At least two ranks. ``node`` or ``nobody``: step times alone do not show stages or data. Raises TooFewSteps.

    looks: how often the same job is judged, each time by other steps: the bound then holds for all of them together.
    """
    excess = excess_by_row(times.seconds)
    found, block, needed = slow_rows(excess, TESTED / looks, random)
    causes = (node_cause(times.seconds, found),) if found else ()
    return Verdict(causes, block, needed)


def excess_by_row(seconds: Sequence[Row]) -> list[Row]:
    """The same shape: how much slower each row is than the median of the others in the same column."""
    return list(zip(*map(log_excess, zip(*seconds, strict=True)), strict=True))


def node_cause(seconds: Sequence[Row], found: Sequence[Blame]) -> Cause:
    """In a synchronous job the slowest rank determines the time of a step: with the blamed ranks, and without."""
    blamed = {blame.row for blame in found}
    slow = {column for blame in found for column in blame.columns(len(seconds[0]))}
    with_them = without = 0.0
    for column in slow:
        with_them += max(row[column] for row in seconds)
        without += max(row[column] for number, row in enumerate(seconds) if number not in blamed)
    return Cause(NODE, with_them / without - 1, max(blame.p for blame in found), tuple(found))

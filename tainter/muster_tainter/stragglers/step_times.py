"""Step times of a job: which ranks are slow, and has a pipeline stage, or have some ranks, more work than others?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median

from muster_tainter.stragglers.excess import Row, excess_by_row, excess_within
from muster_tainter.stragglers.permutation import is_slow_by_signs, slow_rows
from muster_tainter.stragglers.skewed_work import data_cause, split_by_pace
from muster_tainter.stragglers.verdict import DATA, NODE, SLOWDOWN, STAGE, TESTED, Blame, Cause, TooFewSteps, Verdict


@dataclass(frozen=True)
class StepTimes:
    """seconds: a row for each rank, a column for each step, all above 0; ranks and steps rise.

    stages: of each rank its pipeline stage; empty if the job has none, or does not say
    work: as ``seconds``, how much there was to do, in any unit; empty if the job does not say
    """

    ranks: Sequence[int]
    steps: Sequence[int]
    seconds: Sequence[Row]
    stages: Sequence[str] = ()
    work: Sequence[Row] = ()

    def rows_of_stages(self) -> dict[str, list[int]]:
        """In the order in which blamed stages are numbered."""
        rows: dict[str, list[int]] = {}
        for row in range(len(self.ranks)):
            rows.setdefault(self.stages[row] if self.stages else "", []).append(row)
        return rows


def judge_step_times(times: StepTimes, random: Random, *, looks: int = 1) -> Verdict:
    """At least two ranks. Without their work, step times do not show skewed data. Raises TooFewSteps.

    Ranks are compared within their stage, and stages by the median of their ranks. A rank that is slow only because of
    its work is not blamed.
    looks: how often the same job is judged, each time by other steps: the bound then holds for all of them together.
    """
    groups = list(times.rows_of_stages().values())
    level = TESTED / looks / (1 + (len(groups) > 1) + bool(times.work))
    found, block, needed = slow_rows(excess_within(times.seconds, groups), level, random, groups)
    slow, busy = split_by_pace(times.seconds, times.work, groups, found) if times.work else (found, [])
    causes = [node_cause(times.seconds, slow)] if slow else []
    blamed = {blame.row for blame in slow}
    if times.work:
        others = [[row for row in group if row not in blamed] for group in groups]
        cause = data_cause(times.seconds, times.work, [each for each in others if each], level, random)
        if cause is None and busy:
            cause = replace(node_cause(times.seconds, busy), kind=DATA, blamed=())
        causes += [cause] if cause else []
    if len(groups) > 1:
        stages = _stage_medians(times.seconds, groups, blamed)
        cause, *lengths = _stage_cause(stages, level, random)
        block, needed = max(block, lengths[0]), max(needed, lengths[1])
        causes += [cause] if cause else []
    return Verdict(tuple(sorted(causes, key=lambda cause: -cause.slowdown)), block, needed)


def node_cause(seconds: Sequence[Row], found: Sequence[Blame]) -> Cause:
    """In a synchronous job the slowest rank determines the time of a step: with the blamed ranks, and without."""
    blamed = {blame.row for blame in found}
    slow = {column for blame in found for column in blame.columns(len(seconds[0]))}
    with_them = without = 0.0
    for column in slow:
        with_them += max(row[column] for row in seconds)
        without += max(row[column] for number, row in enumerate(seconds) if number not in blamed)
    return Cause(NODE, with_them / without - 1, max(blame.p for blame in found), tuple(found))


def _stage_medians(seconds: Sequence[Row], groups: Sequence[Sequence[int]], slow: set[int]) -> list[Row]:
    """A row for each stage: the median of its ranks, without the slow ones if there are others."""
    chosen = [[row for row in group if row not in slow] or group for group in groups]
    return [[median(column) for column in zip(*(seconds[row] for row in group), strict=True)] for group in chosen]


def _stage_cause(stages: Sequence[Row], level: float, random: Random) -> tuple[Cause | None, int, int]:
    """(the stages with more work, block and needed as of ``slow_rows``).

    Stages are proven twice, because some are noisier than others, and because slow moments have no fast ones to match.
    """
    excess = excess_by_row(stages)
    try:
        slow, block, needed = slow_rows(excess, level, random)
    except TooFewSteps as error:  # few stages take more steps than many ranks
        return None, 1, error.needed
    slow = [blame for blame in slow if is_slow_by_signs(excess[blame.row], block, level / len(stages), random)]
    slowdown = _uneven_slowdown(stages, slow)
    if slowdown < SLOWDOWN - 1:
        return None, block, needed
    return Cause(STAGE, slowdown, max(blame.p for blame in slow), tuple(slow)), block, needed


def _uneven_slowdown(stages: Sequence[Row], slow: Sequence[Blame]) -> float:
    """Of the steps in which stages are slow, against stages that share the work evenly. 0 if none is slow."""
    columns = {column for blame in slow for column in blame.columns(len(stages[0]))}
    totals = [math.fsum(row[column] for column in columns) for row in stages]
    return max(totals) / fmean(totals) - 1 if columns else 0.0

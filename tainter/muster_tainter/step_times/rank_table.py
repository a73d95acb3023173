"""From completed steps over time to a table of ranks by steps.

Prometheus reads ranks at different moments, so a rank's time for a range of steps is interpolated between two readings.
The columns of the table are the same steps of all ranks, and each is at least as wide as the steps between two readings
of a rank. Ranks that do not take part in these steps are left out.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from muster_tainter.step_times.job_series import RankSeries, UnusableSeries
from muster_tainter.stragglers.step_times import StepTimes

SECONDS_LIMITS = 1e-9, 1e9  # of a step, as in a file of step times
LEFT_OUT_LIMIT = 4  # one rank in so many may be left out
CELLS_LIMIT = 1 << 14
"""Ranks times columns: so a permutation takes 1 ms, and the 38,400 of a window of 30 minutes at most a minute."""
LEAST_COLUMNS = 24


@dataclass(frozen=True)
class RankTable:
    """times: a row for each of ``rows``; its steps are the first of each column. width: steps in a column.

    starts, ends: of each column, in seconds since the epoch, by the median rank. left_out: ranks without the steps
    """

    times: StepTimes
    rows: Sequence[RankSeries]
    width: int
    starts: Sequence[float]
    ends: Sequence[float]
    left_out: Sequence[int]


def tabulate(series: Sequence[RankSeries]) -> RankTable:
    """Raises UnusableSeries."""
    if len(series) < 2:
        raise UnusableSeries("one_rank", f"series of {len(series)} ranks; expected at least two, as ranks are compared")
    rising = [each for each in series if len(each.times) > 1]
    if len(rising) < 2:
        raise UnusableSeries("too_few_steps", f"{len(rising)} ranks have completed steps; expected at least two")
    width = max(1, math.ceil(median(map(_typical_rise, rising))))
    last = median(each.counts[-1] for each in series)
    middle = (median(each.counts[0] for each in series) + last) / 2
    rows = [each for each in rising if each.counts[0] < middle and each.counts[-1] + 3 * width >= last]
    taking_part = {each.rank for each in rows}
    left_out = [each.rank for each in series if each.rank not in taking_part]
    if len(rows) < 2 or len(left_out) * LEFT_OUT_LIMIT > len(series):
        shown = ", ".join(f"{each.rank}: {each.counts[0]:.0f} to {each.counts[-1]:.0f}" for each in series[:4])
        raise UnusableSeries(
            "steps_differ",
            f"{len(left_out)} of {len(series)} ranks have completed other steps than most (rank: steps {shown}, …); "
            "expected ranks that count the same steps",
        )
    first, end = math.ceil(max(each.counts[0] for each in rows)), math.floor(min(each.counts[-1] for each in rows))
    columns = max(LEAST_COLUMNS, CELLS_LIMIT // len(rows))
    width = max(width, math.ceil((end - first) / columns))
    bounds = range(first, end + 1, width)
    if len(bounds) < 2:
        raise UnusableSeries("too_few_steps", f"{max(end - first, 0)} steps of all ranks; expected at least {width}")
    seconds = [_of_a_step(each.counts, each.sums, bounds) for each in rows]
    kept = [column for column in range(len(bounds) - 1) if all(map(_is_usable, (row[column] for row in seconds)))]
    if not kept:
        raise UnusableSeries("too_few_steps", "no step in which the times of all ranks are between 1e-9 s and 1e9 s")
    reached = [[_at(each.counts, each.times, bound) for bound in bounds] for each in rows]
    moments = [median(column) for column in zip(*reached, strict=True)]
    times = StepTimes(
        [each.rank for each in rows],
        [bounds[column] for column in kept],
        [[row[column] for column in kept] for row in seconds],
        [each.stage for each in rows] if all(each.stage for each in rows) else [],
        _work(rows, bounds, kept),
    )
    starts, ends = [moments[column] for column in kept], [moments[column + 1] for column in kept]
    return RankTable(times, rows, width, starts, ends, left_out)


def _typical_rise(series: RankSeries) -> float:
    return median(after - before for before, after in pairwise(series.counts))


def _of_a_step(counts: Sequence[float], sums: Sequence[float], bounds: range) -> list[float]:
    """In each column."""
    reached = [_at(counts, sums, bound) for bound in bounds]
    return [(after - before) / bounds.step for before, after in pairwise(reached)]


def _work(rows: Sequence[RankSeries], bounds: range, kept: Sequence[int]) -> list[list[float]]:
    """Empty if a rank does not say how much it had to do, or had nothing to do."""
    if not all(each.work for each in rows):
        return []
    whole = [_of_a_step(each.counts, each.work, bounds) for each in rows]
    work = [[row[column] for column in kept] for row in whole]
    return work if all(amount > 0 for row in work for amount in row) else []


def _at(counts: Sequence[float], values: Sequence[float], count: float) -> float:
    """Linear between two readings. counts: rising; ``count`` is between the first and the last."""
    after = min(max(bisect_right(counts, count), 1), len(counts) - 1)
    part = (count - counts[after - 1]) / (counts[after] - counts[after - 1])
    return values[after - 1] + part * (values[after] - values[after - 1])


def _is_usable(seconds: float) -> bool:
    least, most = SECONDS_LIMITS
    return least <= seconds <= most

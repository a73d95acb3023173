"""How much slower a rank is than the others at the same step, and how long that lasts by chance."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median

from muster_tainter.stragglers.verdict import LEAST_EXCESS, MAD_TO_SIGMA

Row = Sequence[float]

LONGEST = math.log(2)
"""A step that takes more than twice as long counts as twice: one checkpoint of a minute must not outweigh a hundred
slow steps."""

MARGIN = LEAST_EXCESS / 2
"""Page's test (Biometrika 41, 1954) takes half of the shift that it looks for off each value."""


def log_excess(values: Row) -> list[float]:
    """Of each value: the logarithm of its ratio to the median of the others. At least two values, all above 0."""
    order = sorted(values)
    return [math.log(value / _median_without(order, value)) for value in values]


def excess_by_row(seconds: Sequence[Row]) -> list[Row]:
    """The same shape: how much slower each row is than the median of the others in the same column."""
    return list(zip(*map(log_excess, zip(*seconds, strict=True)), strict=True))


def excess_within(seconds: Sequence[Row], groups: Sequence[Sequence[int]]) -> list[Row]:
    """As :func:`excess_by_row` for each group. 0 for a row that is alone in its group."""
    rows: list[Row] = [[0.0] * len(row) for row in seconds]
    for group in groups:
        if len(group) > 1:
            for row, excess in zip(group, excess_by_row([seconds[row] for row in group]), strict=True):
                rows[row] = excess
    return rows


def _median_without(order: Row, value: float) -> float:
    """order: sorted, with ``value``. The median of the others, without sorting them again."""
    others = len(order) - 1
    low, high = (others - 1) // 2, others // 2

    def at(place: int) -> float:
        # where value stands before place, the others stand one further
        return order[place + (value <= order[place])]

    return (at(low) + at(high)) / 2


def drift(excess: Row) -> list[float]:
    """What the test adds up: negative for a rank that is hardly slower than the others."""
    return [min(value, LONGEST) - MARGIN for value in excess]


def largest_run(values: Row) -> tuple[float, int, int]:
    """(largest sum of consecutive values, first index, last index); (0, 0, -1) if none is above 0."""
    best, first, last = 0.0, 0, -1
    total, start = 0.0, 0
    for place, value in enumerate(values):
        if total <= 0:
            total, start = 0.0, place
        total += value
        if total > best:
            best, first, last = total, start, place
    return best, first, last


def correlation_length(rows: Sequence[Row], longest: int) -> float:
    """Steps over which a slow moment lasts by chance: the integrated autocorrelation time of what is above 0.

    1: steps are independent. Rows are of equal length; 64 of them are looked at. The sum ends at the first correlation
    that is not above the noise of an estimate (two standard errors), or after ``longest`` steps.
    """
    raised = [[max(value, 0.0) for value in row] for row in rows[:: max(1, len(rows) // 64)]]
    raised = [[value - mean for value in row] for row in raised if (mean := fmean(row)) > 0]
    variance = sum(value * value for row in raised for value in row)
    if not variance:
        return 1.0
    length = len(raised[0])
    noise = 2 / math.sqrt(len(raised) * length)
    total = 1.0
    for lag in range(1, min(length // 2, longest)):
        pairs = ((row[:-lag], row[lag:]) for row in raised)
        correlation = sum(x * y for early, late in pairs for x, y in zip(early, late, strict=True)) / variance
        if correlation <= noise:
            break
        total += 2 * correlation
    return total


def block_sums(row: Row, block: int) -> list[float]:
    """Of ``block`` values each; what is left over at the end belongs to the last block."""
    if block == 1:
        return list(row)
    count = max(len(row) // block, 1)
    sums = [0.0, *accumulate(row)]
    ends = [*(number * block for number in range(count)), len(row)]
    return [sums[end] - sums[begin] for begin, end in pairwise(ends)]


def distance_in_sigmas(level: float, levels: Row) -> float:
    """Between a level and the median of all, in robust standard deviations of all."""
    middle = median(levels)
    sigma = MAD_TO_SIGMA * median(abs(each - middle) for each in levels)
    if sigma == 0:
        return math.inf if level > middle else 0.0
    return (level - middle) / sigma

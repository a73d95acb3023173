"""Skewed data, where the ranks of a job say how much work each step had: tokens, sequence lengths squared, images.

A rank that takes longer because it has more to do is no reason to check its node. What skewed data costs a job is the
time of the slowest rank in each step, against that of the same ranks at the same pace with even work.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean

from muster_tainter.stragglers.excess import Row, excess_within
from muster_tainter.stragglers.permutation import block_length, least_blocks, permutation_p
from muster_tainter.stragglers.verdict import DATA, LEAST_EXCESS, SAME_MICROBATCH, SLOWDOWN, Blame, Cause

ROTATIONS_LIMIT = 256  # of a block: among these the observed one is as likely as each other if work explains nothing

Groups = Sequence[Sequence[int]]


def split_by_pace(
    seconds: Sequence[Row], work: Sequence[Row], groups: Groups, found: Sequence[Blame]
) -> tuple[list[Blame], list[Blame]]:
    """(slow rows, rows that are slow for their work only). The latter are not slower per unit of work by a tenth."""
    paced = excess_within(_paces(seconds, work), groups)
    slow, busy = list[Blame](), list[Blame]()
    for blame in found:
        level = fmean(paced[blame.row][column] for column in blame.columns(len(seconds[0])))
        (slow if level >= LEAST_EXCESS else busy).append(blame)
    return slow, busy


def data_cause(
    seconds: Sequence[Row], work: Sequence[Row], groups: Groups, level: float, random: Random
) -> Cause | None:
    """groups: rows that are compared, without the slow ones; at least one with two rows.

    The chance of a cause, if times have nothing to do with work, is at most ``level``.
    """
    slowdown = _slowdown(seconds, work, groups)
    if slowdown < SLOWDOWN - 1:
        return None
    times, amounts = _centred(seconds, groups), _centred(work, groups)
    rows = [row for group in groups for row in group]
    squares = math.sqrt(_product(times, times, rows)) * math.sqrt(_product(amounts, amounts, rows))
    if not squares or _product(times, amounts, rows) < SAME_MICROBATCH * squares:
        return None
    blocks = least_blocks(min(max(map(len, groups)), ROTATIONS_LIMIT), level)
    block = block_length([times[row] for row in rows], len(rows), blocks)
    if len(seconds[0]) < block * blocks:
        return None
    p = permutation_p(_rotations(times, amounts, groups, block, random), level)
    return None if p is None else Cause(DATA, slowdown, p)


def _paces(seconds: Sequence[Row], work: Sequence[Row]) -> list[Row]:
    return [[time / amount for time, amount in zip(*rows, strict=True)] for rows in zip(seconds, work, strict=True)]


def _slowdown(seconds: Sequence[Row], work: Sequence[Row], groups: Groups) -> float:
    paces, actual, even = _paces(seconds, work), 0.0, 0.0
    for column in range(len(seconds[0])):
        actual += max(seconds[row][column] for group in groups for row in group)
        even += max(
            paces[row][column] * fmean(work[each][column] for each in group) for group in groups for row in group
        )
    return actual / even - 1


def _centred(values: Sequence[Row], groups: Groups) -> list[list[float]]:
    """Logarithms around the mean of their group, in each column."""
    centred = [[math.log(value) for value in row] for row in values]
    for group in groups:
        for column in range(len(values[0])):
            middle = fmean(centred[row][column] for row in group)
            for row in group:
                centred[row][column] -= middle
    return centred


def _product(one: Sequence[Row], other: Sequence[Row], rows: Sequence[int]) -> float:
    return math.fsum(x * y for row in rows for x, y in zip(one[row], other[row], strict=True))


def _rotations(
    times: Sequence[Row], amounts: Sequence[Row], groups: Groups, block: int, random: Random
) -> Callable[[], bool]:
    """Draws a permutation: does the work of other ranks explain the times as well?

    In each block of steps all ranks get the work of another one of their group. What each rotation of a block adds is
    computed once.
    """
    columns, most = len(times[0]), max(map(len, groups))
    ends = [*range(block, columns - block + 1, block), columns]
    totals, begin = list[list[float]](), 0
    for end in ends:
        turns = [0, *random.sample(range(1, most), min(most, ROTATIONS_LIMIT) - 1)]
        totals.append([_agreement(times, amounts, groups, range(begin, end), turn) for turn in turns])
        begin = end
    limit = math.fsum(each[0] for each in totals) * (1 - 1e-12)
    return lambda: math.fsum(map(random.choice, totals)) >= limit


def _agreement(times: Sequence[Row], amounts: Sequence[Row], groups: Groups, columns: range, turn: int) -> float:
    return math.fsum(
        times[row][column] * amounts[group[(place + turn) % len(group)]][column]
        for group in groups
        for place, row in enumerate(group)
        for column in columns
    )

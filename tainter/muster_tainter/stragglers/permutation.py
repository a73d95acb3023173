"""A permutation test: is a row slow for longer than chance explains?

If no row is slow, rows are exchangeable within a block of steps: any of them could have had any of the times. The test
rotates the rows within each block by a random number, and counts how often some row then looks as slow as the one in
question. Rotations are permutations enough (they form a group), cost less than shuffles, and keep neighbours, such as
the GPUs of one node, together. Where only the rows of a group are exchangeable, as those of a pipeline stage, each
group is rotated for itself.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from random import Random
from statistics import fmean

from muster_tainter.stragglers.excess import (
    LONGEST,
    MARGIN,
    Row,
    block_sums,
    correlation_length,
    distance_in_sigmas,
    drift,
    largest_run,
)
from muster_tainter.stragglers.verdict import LEAST_EXCESS, ROBUST_SIGMAS, Blame, TooFewSteps

CELLS_LIMIT = 1 << 16  # rows times blocks: so one permutation takes 4 ms
IN_A_BLOCK = 5  # estimated correlation lengths, or two true ones: the estimate misses what is below the margin
SET_ASIDE = 4  # of the rows, one in so many says nothing about chance: the slowest, which may be slow for a cause


def least_blocks(rows: int, false_blame: float) -> int:
    """With fewer blocks, chance makes one of the rows the slowest in every block too often: rows ** (1 - blocks)."""
    return 1 + math.ceil(round(-math.log(false_blame) / math.log(rows), 9))


def permutation_p(is_as_extreme: Callable[[], bool], false_blame: float) -> float | None:
    """is_as_extreme: draws one permutation. None: p is above ``false_blame``, mostly known after a few permutations.

    There are so many that p may be ``false_blame`` with one permutation that is as extreme (Besag and Clifford,
    Sequential Monte Carlo p-values, Biometrika 78, 1991).
    """
    permutations = math.ceil(round(2 / false_blame, 9)) - 1
    extreme = 0
    for _ in range(permutations):
        extreme += is_as_extreme()
        if extreme > 1:
            return None
    return (1 + extreme) / (1 + permutations)


def slow_rows(
    excess: Sequence[Row], false_blame: float, random: Random, groups: Sequence[Sequence[int]] | None = None
) -> tuple[list[Blame], int, int]:
    """(slow rows, length of a block, steps needed with blocks of this length).

    excess: by row, the ``log_excess`` of each step; at least two rows. The chance that a row is blamed though none is
    slow is at most ``false_blame``: the slowest row is compared with the slowest of each permutation, and the next one
    is tested only if it was proven (step-down, Romano and Wolf, Econometrica 73, 2005).
    groups: rows that are exchangeable, by number; all, if not given. A row that is alone in its group is not blamed.
    Beyond the test, a row is blamed only if it is slow by a tenth, and stands out from how ranks differ anyway.
    At most half of the rows are blamed. Raises TooFewSteps.
    """
    count, steps = len(excess), len(excess[0])
    groups = [range(count)] if groups is None else groups
    untested = _comparable(groups)
    blocks = _least_blocks_of(untested, false_blame)
    if steps < blocks:
        raise TooFewSteps(steps, blocks)
    drifts = [drift(row) for row in excess]
    sums = {row: largest_run(values)[0] for row, values in enumerate(drifts)}
    aside = math.ceil(count / SET_ASIDE)
    found: list[Blame] = []
    block, needed = 1, blocks
    while untested and len(found) < count // 2:
        pool = sorted(chain.from_iterable(untested), key=lambda row: -sums[row])
        if sums[pool[0]] <= 0:
            break
        block = block_length([drifts[row] for row in pool[aside:] or pool[1:]], count, blocks)
        needed = block * _least_blocks_of(untested, false_blame)
        if steps < needed:
            break
        blocked = {row: block_sums(drifts[row], block) for row in pool}
        row = max(pool, key=lambda each: largest_run(blocked[each])[0])
        columns = [list(zip(*(blocked[each] for each in group), strict=True)) for group in untested]
        limit = largest_run(blocked[row])[0]
        p = permutation_p(_RotatedRows(list(zip(*columns, strict=True)), limit, random), false_blame)
        if p is None:
            break
        if blame := _blame(row, excess, drifts[row], block, p, _measures(row, groups)):
            found.append(blame)
        untested = _comparable([[each for each in group if each != row] for group in untested])
    return found, block, needed


def is_slow_by_signs(excess: Row, block: int, false_blame: float, random: Random) -> bool:
    """Whether a row is slow for longer than chance explains, if chance makes it as often faster as it makes it slower.

    excess: ``log_excess`` of each step. Rows may be more or less noisy than others, for which the permutation of rows
    is not valid: here, the sign of each block is drawn anew (Fisher, The Design of Experiments, 1935, on symmetry).
    """
    sums = block_sums([max(-LONGEST, min(value, LONGEST)) for value in excess], block)
    margins = block_sums([MARGIN] * len(excess), block)
    drifts = [(value - margin, -value - margin) for value, margin in zip(sums, margins, strict=True)]
    limit = largest_run([slower for slower, _ in drifts])[0] * (1 - 1e-12)

    def is_as_extreme() -> bool:
        signs, total = random.getrandbits(len(drifts)), 0.0
        for slower, faster in drifts:
            total = (total if total > 0 else 0.0) + (slower if signs & 1 else faster)
            if total >= limit:
                return True
            signs >>= 1
        return False

    return permutation_p(is_as_extreme, false_blame) is not None


def _measures(row: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """The rows by which ``row`` has to stand out. One of two is as much faster as the other one is slower."""
    return [each for group in groups for each in group if each == row or len(group) != 2 or row not in group]


def _comparable(groups: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    return [group for group in groups if len(group) > 1]


def _least_blocks_of(groups: Sequence[Sequence[int]], false_blame: float) -> int:
    """As :func:`least_blocks`, for a row of any of the groups."""
    return least_blocks(min(map(len, groups)), false_blame / len(groups)) if groups else 1


class _RotatedRows:
    """Draws a permutation: has one of its rows a run of at least ``limit``?

    columns: of each block the values of its rows, by group
    """

    def __init__(self, columns: Sequence[Sequence[tuple[float, ...]]], limit: float, random: Random) -> None:
        self.columns, self.random = columns, random
        self.count = sum(map(len, columns[0]))
        self.limit = limit * (1 - 1e-12)  # sums of the same numbers in another order may differ

    def __call__(self) -> bool:
        totals: Row = [0.0] * self.count
        for column in self.columns:
            rotated: tuple[float, ...] = ()
            for group in column:
                first = self.random.randrange(len(group))
                rotated += group[first:] + group[:first]
            totals = [total + value if total > 0 else value for total, value in zip(totals, rotated, strict=True)]
            if max(totals) >= self.limit:
                return True
        return False


def block_length(others: Sequence[Row], count: int, blocks: int) -> int:
    """A multiple of the time over which slow moments of the other rows last; longer where the table is large."""
    steps = len(others[0])
    length = correlation_length(others, longest=max(2, steps // blocks))
    return max(1 + math.ceil(IN_A_BLOCK * (length - 1)), math.ceil(count * steps / CELLS_LIMIT))


def _blame(row: int, excess: Sequence[Row], drifts: Row, block: int, p: float, measures: Sequence[int]) -> Blame | None:
    _, first, last = largest_run(drifts)
    levels = {each: fmean([min(value, LONGEST) for value in excess[each][first : last + 1]]) for each in measures}
    if levels[row] < LEAST_EXCESS:
        return None
    if len(levels) > 2 and distance_in_sigmas(levels[row], list(levels.values())) < ROBUST_SIGMAS:
        return None
    until = None if last + max(block, 2) >= len(drifts) else last
    return Blame(row, first, until, math.expm1(fmean(excess[row][first : last + 1])), p)

"""A permutation test: is a row slow for longer than chance explains?

If no row is slow, rows are exchangeable within a block of steps: any of them could have had any of the times. The test
rotates the rows within each block by a random number, and counts how often some row then looks as slow as the one in
question. Rotations are permutations enough (they form a group), cost less than shuffles, and keep neighbours, such as
the GPUs of one node, together.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean

from muster_tainter.stragglers.excess import (
    LONGEST,
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


def slow_rows(excess: Sequence[Row], false_blame: float, random: Random) -> tuple[list[Blame], int, int]:
    """(slow rows, length of a block, steps needed with blocks of this length).

    excess: by row, the ``log_excess`` of each step; at least two rows. The chance that a row is blamed though none is
    slow is at most ``false_blame``: the slowest row is compared with the slowest of each permutation, and the next one
    is tested only if it was proven (step-down, Romano and Wolf, Econometrica 73, 2005).
    Beyond the test, a row is blamed only if it is slow by a tenth, and stands out from how ranks differ anyway.
    At most half of the rows are blamed. Raises TooFewSteps.
    """
    count, steps = len(excess), len(excess[0])
    blocks = least_blocks(count, false_blame)
    if steps < blocks:
        raise TooFewSteps(steps, blocks)
    drifts = [drift(row) for row in excess]
    sums = {row: largest_run(values)[0] for row, values in enumerate(drifts)}
    pool = sorted(sums, key=lambda row: -sums[row])
    aside = math.ceil(count / SET_ASIDE)
    found: list[Blame] = []
    block, needed = 1, blocks
    while len(pool) > 1 and len(found) < count // 2 and sums[pool[0]] > 0:
        block = block_length([drifts[row] for row in pool[aside:] or pool[1:]], count, blocks)
        needed = block * least_blocks(len(pool), false_blame)
        if steps < needed:
            break
        blocked = {row: block_sums(drifts[row], block) for row in sorted(pool)}
        row = max(pool, key=lambda each: largest_run(blocked[each])[0])
        limit = largest_run(blocked[row])[0]
        p = permutation_p(_RotatedRows(list(zip(*blocked.values(), strict=True)), limit, random), false_blame)
        if p is None:
            break
        if blame := _blame(row, excess, drifts[row], block, p):
            found.append(blame)
        pool.remove(row)
    return found, block, needed


class _RotatedRows:
    """Draws a permutation: has one of its rows a run of at least ``limit``?"""

    def __init__(self, columns: Sequence[tuple[float, ...]], limit: float, random: Random) -> None:
        self.columns, self.random = columns, random
        self.limit = limit * (1 - 1e-12)  # sums of the same numbers in another order may differ

    def __call__(self) -> bool:
        count = len(self.columns[0])
        totals: Row = [0.0] * count
        for column in self.columns:
            first = self.random.randrange(count)
            rotated = column[first:] + column[:first]
            totals = [total + value if total > 0 else value for total, value in zip(totals, rotated, strict=True)]
            if max(totals) >= self.limit:
                return True
        return False


def block_length(others: Sequence[Row], count: int, blocks: int) -> int:
    """A multiple of the time over which slow moments of the other rows last; longer where the table is large."""
    steps = len(others[0])
    length = correlation_length(others, longest=max(2, steps // blocks))
    return max(1 + math.ceil(IN_A_BLOCK * (length - 1)), math.ceil(count * steps / CELLS_LIMIT))


def _blame(row: int, excess: Sequence[Row], drifts: Row, block: int, p: float) -> Blame | None:
    _, first, last = largest_run(drifts)
    levels = [fmean([min(value, LONGEST) for value in each[first : last + 1]]) for each in excess]
    if levels[row] < LEAST_EXCESS:
        return None
    if len(excess) > 2 and distance_in_sigmas(levels[row], levels) < ROBUST_SIGMAS:
        return None
    until = None if last + max(block, 2) >= len(drifts) else last
    return Blame(row, first, until, math.expm1(fmean(excess[row][first : last + 1])), p)

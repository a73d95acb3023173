"""Operation traces of a job with pipeline and data parallelism: a slow worker, a slow stage, or skewed data?

A worker is one stage of one data-parallel group (dp rank). A worker's own work in a step is the sum of its forward and
backward passes; communication is left out, as its time is mostly that of waiting for others. In a synchronous pipeline
with many microbatches the slowest worker determines the time of a step, so what a cause costs is the time of the
slowest worker with and without it (Lin et al., arXiv 2505.05713, simulate the whole schedule instead).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean, median

from muster_tainter.stragglers.excess import Row, excess_by_row
from muster_tainter.stragglers.permutation import block_length, least_blocks, permutation_p, slow_rows
from muster_tainter.stragglers.step_times import node_cause
from muster_tainter.stragglers.verdict import (
    DATA,
    SAME_MICROBATCH,
    SLOWDOWN,
    STAGE,
    TESTED,
    Blame,
    Cause,
    Verdict,
)

LEVEL = TESTED / 3  # of each of the three tests


@dataclass(frozen=True)
class Operations:
    """forward, backward: by worker, step and microbatch the seconds of a pass, above 0.

    workers: (dp rank, stage, rank), one of each stage in each dp rank, in this order. steps rise.
    """

    workers: Sequence[tuple[int, int, int]]
    dp_count: int
    stage_count: int
    steps: Sequence[int]
    forward: Sequence[Sequence[Row]]
    backward: Sequence[Sequence[Row]]

    def seconds(self) -> list[Row]:
        """A row for each worker, a column for each step."""
        return [
            [math.fsum(forward) + math.fsum(backward) for forward, backward in zip(*both, strict=True)]
            for both in zip(self.forward, self.backward, strict=True)
        ]


def judge_operations(operations: Operations, random: Random) -> Verdict:
    """At least two dp ranks or two stages. With one dp rank a slow worker and a slow stage are the same: ``stage``.

    Raises TooFewSteps.
    """
    seconds: Sequence[Row] = operations.seconds()
    causes, block, needed = list[Cause](), 1, 1
    if operations.dp_count > 1:
        found, block, needed = slow_rows(worker_excess(operations, seconds), LEVEL, random)
        if found:
            causes.append(node_cause(seconds, found))
            seconds = without_workers(operations, seconds, found)
    if operations.stage_count > 1:
        found, *lengths = slow_rows(excess_by_row(stage_medians(operations, seconds)), LEVEL, random)
        block, needed = max(block, lengths[0]), max(needed, lengths[1])
        if found and (slowdown := stage_slowdown(operations, seconds)) >= SLOWDOWN - 1:
            causes.append(Cause(STAGE, slowdown, max(blame.p for blame in found), tuple(found)))
    if operations.dp_count > 1 and (cause := _data_cause(operations, seconds, random)):
        causes.append(cause)
    return Verdict(tuple(sorted(causes, key=lambda cause: -cause.slowdown)), block, needed)


def worker_excess(operations: Operations, seconds: Sequence[Row]) -> list[Row]:
    """Of each worker against the same stage of other dp ranks, less that of the other stages of its own dp rank.

    A slow microbatch passes all stages of its dp rank, so it is not a worker's fault.
    """
    of_stage = [excess_by_row(seconds[stage :: operations.stage_count]) for stage in range(operations.stage_count)]
    if operations.stage_count == 1:
        return of_stage[0]
    rows = list[Row]()
    for dp_rank in range(operations.dp_count):
        own = [rows_of_stage[dp_rank] for rows_of_stage in of_stage]
        for stage, row in enumerate(own):
            others = zip(*(other for number, other in enumerate(own) if number != stage), strict=True)
            rows.append([value - median(theirs) for value, theirs in zip(row, others, strict=True)])
    return rows


def without_workers(operations: Operations, seconds: Sequence[Row], found: Sequence[Blame]) -> Sequence[Row]:
    """Give each slow worker the median time of the same stage of the other dp ranks."""
    mended = [list(row) for row in seconds]
    slow = {blame.row for blame in found}
    for blame in found:
        stage = blame.row % operations.stage_count
        peers = [row for row in range(stage, len(seconds), operations.stage_count) if row not in slow]
        for column in blame.columns(len(operations.steps)) if peers else ():
            mended[blame.row][column] = median(seconds[row][column] for row in peers)
    return mended


def stage_medians(operations: Operations, seconds: Sequence[Row]) -> list[Row]:
    """A row for each stage: the median of its dp ranks."""
    return [
        [median(column) for column in zip(*seconds[stage :: operations.stage_count], strict=True)]
        for stage in range(operations.stage_count)
    ]


def stage_slowdown(operations: Operations, seconds: Sequence[Row]) -> float:
    """Against stages that share the work of their dp rank evenly."""
    stages = operations.stage_count
    return _slowdown(seconds, [seconds[first : first + stages] for first in range(0, len(seconds), stages)])


def data_slowdown(operations: Operations, seconds: Sequence[Row]) -> float:
    """Against dp ranks that share the work of their stage evenly."""
    stages = operations.stage_count
    return _slowdown(seconds, [seconds[stage::stages] for stage in range(stages)])


def _slowdown(seconds: Sequence[Row], groups: Sequence[Sequence[Row]]) -> float:
    actual = math.fsum(map(max, zip(*seconds, strict=True)))
    shared = [[fmean(column) for column in zip(*group, strict=True)] for group in groups]
    return actual / math.fsum(map(max, zip(*shared, strict=True))) - 1


def _data_cause(operations: Operations, seconds: Sequence[Row], random: Random) -> Cause | None:
    """Skewed data makes the same microbatch slow wherever it is computed: in each stage, forward and backward."""
    slowdown = data_slowdown(operations, seconds)
    if slowdown < SLOWDOWN - 1:
        return None
    pairs = list(_pairs(operations))
    squares = math.sqrt(_products(pairs, 0, 0)) * math.sqrt(_products(pairs, 1, 1))
    if not squares or _products(pairs, 0, 1) < SAME_MICROBATCH * squares:
        return None
    dp_rows = excess_by_row([_of_dp_rank(operations, seconds, dp_rank) for dp_rank in range(operations.dp_count)])
    blocks = least_blocks(len(pairs[0][0][0]), LEVEL)
    block = block_length(dp_rows, len(dp_rows), blocks)
    if len(pairs) < block * blocks:
        return None
    rotated = _RotatedMicrobatches(pairs, block, _products(pairs, 0, 1), random)
    p = permutation_p(rotated, LEVEL)
    return None if p is None else Cause(DATA, slowdown, p)


def _of_dp_rank(operations: Operations, seconds: Sequence[Row], dp_rank: int) -> Row:
    first = dp_rank * operations.stage_count
    return [math.fsum(column) for column in zip(*seconds[first : first + operations.stage_count], strict=True)]


Pair = tuple[Row, Row]  # of the same microbatches, one after the other: how slow each is here and there, centred


def _pairs(operations: Operations) -> Iterator[list[Pair]]:
    """Of each step: neighbouring stages, each over all dp ranks; of a single stage forward and backward passes, each
    dp rank around its own mean, as a slow worker is slow in both."""
    stages = operations.stage_count
    for step in range(len(operations.steps)):
        forward = [row[step] for row in operations.forward]
        backward = [row[step] for row in operations.backward]
        if stages == 1:
            both = ([value for row in passes for value in _centred([row])] for passes in (forward, backward))
            yield [(next(both), next(both))]
            continue
        work = [list(map(sum, zip(*passes, strict=True))) for passes in zip(forward, backward, strict=True)]
        of_stage = [_centred(work[stage::stages]) for stage in range(stages)]
        yield list(pairwise(of_stage))


def _centred(rows: Sequence[Row]) -> list[float]:
    values = [math.log(value) for row in rows for value in row]
    middle = fmean(values)
    return [value - middle for value in values]


def _products(pairs: Sequence[Sequence[Pair]], one: int, other: int) -> float:
    return math.fsum(
        x * y for of_step in pairs for pair in of_step for x, y in zip(pair[one], pair[other], strict=True)
    )


class _RotatedMicrobatches:
    """Draws a permutation: do other microbatches agree as well as the same ones do?"""

    def __init__(self, pairs: Sequence[Sequence[Pair]], block: int, agreement: float, random: Random) -> None:
        self.pairs, self.block, self.agreement, self.random = pairs, block, agreement * (1 - 1e-12), random

    def __call__(self) -> bool:
        count = len(self.pairs[0][0][0])
        total, first = 0.0, 0
        for number, of_step in enumerate(self.pairs):
            if number % self.block == 0:
                first = self.random.randrange(count)
            for here, there in of_step:
                total += sum(x * y for x, y in zip(here, [*there[first:], *there[:first]], strict=True))
        return total >= self.agreement

"""The verdict on one job's step times in one window: a pure function, and the types that cross to the child process."""

from collections.abc import Iterator, Sequence
from math import fsum
from random import Random
from statistics import fmean

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_tainter.step_times.job_series import RankSeries, SeriesLabels, UnusableSeries, decode_ranks
from muster_tainter.step_times.rank_table import RankTable, tabulate
from muster_tainter.step_times.stall import Stall, find_stall
from muster_tainter.stragglers.step_times import judge_step_times
from muster_tainter.stragglers.verdict import DATA, FALSE_BLAME, NOBODY, NODE, STAGE, Blame, Cause, TooFewSteps

STALLED = "stalled"
TOO_FEW_STEPS = "too_few_steps"
UNUSABLE = "unusable"
VERDICTS = (NODE, STAGE, DATA, NOBODY, STALLED, TOO_FEW_STEPS, "ambiguous", "steps_differ", "one_rank", UNUSABLE)
RANKS_SHOWN = 16  # ranks left out, or stages, that a verdict names
STAGE_SHOWN = 40  # characters


class SlowRank(msgspec.Struct, frozen=True):
    """since, until: steps; until is None if the rank is slow to the end. since_at, until_at: seconds since the epoch.

    excess: how much slower than the median of the others, 0.5: by half. stage, pod, gpu: empty if no label says
    Of a job that has stalled: a rank that others wait for; since: its last step. Of a slow stage: its first rank. Of
    skewed data: the rank with the most work in the window, in all its steps; excess: how much more than the mean.
    """

    rank: int
    stage: str
    pod: str
    gpu: str
    since: int
    since_at: float
    until: int | None
    until_at: float
    excess: float
    p: float


class JobVerdict(msgspec.Struct, frozen=True):
    """verdict: one of VERDICTS; message: more about it. ranks, steps: compared; left_out: ranks that were not.

    A job with a slow rank and another cause has the verdict ``node``, as only that has a node checked.
    slowdown: the job's steps take this part longer than without the slow ranks, or than with even stages or even work
    false_blame: chance that a job without a slow rank is blamed on one in a day
    """

    verdict: str
    message: str = ""
    ranks: int = 0
    steps: int = 0
    slowdown: float = 0.0
    slow: tuple[SlowRank, ...] = ()
    left_out: tuple[int, ...] = ()
    unusable: int = 0
    false_blame: float = FALSE_BLAME
    cpu_s: float = 0.0


class JobQuestion(msgspec.Struct, frozen=True):
    """seed: the same for the same job and window, so that a new leader comes to the same verdict.

    looks: windows in a day. reading_s: between two values of a series
    """

    labels: SeriesLabels
    seed: str
    looks: int
    reading_s: float


def judge_job(question: JobQuestion, body: bytes) -> JobVerdict:
    """body: Prometheus' answer. Never raises for its content."""
    try:
        series, unusable = decode_ranks(body, question.labels)
        stall = find_stall(series, question.reading_s)
        if stall is not None:
            return _stalled(stall, series)
        table = tabulate(series)
    except UnusableSeries as error:
        return JobVerdict(error.kind, str(error))
    known = JobVerdict(
        NOBODY,
        ranks=len(table.rows),
        steps=len(table.times.steps) * table.width,
        left_out=tuple(table.left_out[:RANKS_SHOWN]),
        unusable=unusable,
    )
    random = Random(question.seed)  # noqa: S311 - draws permutations
    try:
        verdict = judge_step_times(table.times, random, looks=question.looks)
    except TooFewSteps as error:
        message = f"{error} (in units of {table.width} steps)"
        return msgspec.structs.replace(known, verdict=TOO_FEW_STEPS, message=message)
    if verdict.causes:
        cause = min(verdict.causes, key=lambda each: (NODE, STAGE, DATA).index(each.kind))
        slow = (_busiest(table, cause.p),) if cause.kind == DATA else tuple(_slow_ranks(table, cause))
        message = _message(cause, slow)
        return msgspec.structs.replace(known, verdict=cause.kind, message=message, slowdown=cause.slowdown, slow=slow)
    if len(table.times.steps) < verdict.needed:
        message = f"slow moments last long: {verdict.needed * table.width} steps are needed for a proof"
        return msgspec.structs.replace(known, verdict=TOO_FEW_STEPS, message=message)
    return known


def _stalled(stall: Stall, series: Sequence[RankSeries]) -> JobVerdict:
    newest = max(each.seen for each in series)
    behind = tuple(
        SlowRank(
            rank=each.rank,
            stage=each.stage,
            pod=each.pod,
            gpu=each.gpu,
            since=int(each.counts[-1]),
            since_at=each.times[-1],
            until=None,
            until_at=newest,
            excess=0.0,
            p=0.0,
        )
        for each in stall.behind
    )
    message = f"no rank has completed a step for {newest - stall.since_at:.0f} s"
    return JobVerdict(STALLED, message, ranks=len(series), slow=behind)


def _message(cause: Cause, slow: Sequence[SlowRank]) -> str:
    if cause.kind == STAGE:
        return f"more work in stage {', '.join(shorten(each.stage, STAGE_SHOWN) for each in slow[:RANKS_SHOWN])}"
    return "ranks have more work than others at the same step" if cause.kind == DATA else ""


def _busiest(table: RankTable, p: float) -> SlowRank:
    totals = [fsum(row) for row in table.times.work]
    most = max(range(len(totals)), key=totals.__getitem__)
    return _slow_rank(table, table.rows[most], Blame(most, 0, None, totals[most] / fmean(totals) - 1, p))


def _slow_ranks(table: RankTable, cause: Cause) -> Iterator[SlowRank]:
    first_of_stage = [rows[0] for rows in table.times.rows_of_stages().values()]
    for blame in cause.blamed:
        yield _slow_rank(table, table.rows[first_of_stage[blame.row] if cause.kind == STAGE else blame.row], blame)


def _slow_rank(table: RankTable, row: RankSeries, blame: Blame) -> SlowRank:
    last = len(table.ends) - 1 if blame.until is None else blame.until
    return SlowRank(
        rank=row.rank,
        stage=row.stage,
        pod=row.pod,
        gpu=row.gpu,
        since=table.times.steps[blame.since],
        since_at=table.starts[blame.since],
        until=None if blame.until is None else table.times.steps[last] + table.width - 1,
        until_at=table.ends[last],
        excess=blame.excess,
        p=blame.p,
    )

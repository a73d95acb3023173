"""The verdict on one job's step times in one window: a pure function, and the types that cross to the child process."""

from random import Random

import msgspec

from muster_tainter.step_times.job_series import SeriesLabels, UnusableSeries, decode_ranks
from muster_tainter.step_times.rank_table import RankTable, tabulate
from muster_tainter.stragglers.step_times import judge_step_times
from muster_tainter.stragglers.verdict import FALSE_BLAME, NOBODY, NODE, Blame, TooFewSteps

TOO_FEW_STEPS = "too_few_steps"
VERDICTS = (NODE, NOBODY, TOO_FEW_STEPS, "ambiguous", "steps_differ", "one_rank", "unusable")
RANKS_SHOWN = 16  # ranks left out that a verdict names


class SlowRank(msgspec.Struct, frozen=True):
    """since, until: steps; until is None if the rank is slow to the end. since_at, until_at: seconds since the epoch.

    excess: how much slower than the median of the others, 0.5: by half. pod, gpu: empty if no label says
    """

    rank: int
    pod: str
    gpu: str
    since: int
    since_at: float
    until: int | None
    until_at: float
    excess: float
    p: float


class JobVerdict(msgspec.Struct, frozen=True):
    """verdict: one of VERDICTS; message: why there is none. ranks, steps: compared; left_out: ranks that were not.

    slowdown: the job's steps take this part longer than without the slow ranks
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

    looks: windows in a day
    """

    labels: SeriesLabels
    seed: str
    looks: int


def judge_job(question: JobQuestion, body: bytes) -> JobVerdict:
    """body: Prometheus' answer. Never raises for its content."""
    try:
        series, unusable = decode_ranks(body, question.labels)
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
    if verdict.kind != NODE:
        if len(table.times.steps) < verdict.needed:
            message = f"slow moments last long: {verdict.needed * table.width} steps are needed for a proof"
            return msgspec.structs.replace(known, verdict=TOO_FEW_STEPS, message=message)
        return known
    [cause] = verdict.causes
    slow = tuple(_slow_rank(table, blame) for blame in cause.blamed)
    return msgspec.structs.replace(known, verdict=NODE, slowdown=cause.slowdown, slow=slow)


def _slow_rank(table: RankTable, blame: Blame) -> SlowRank:
    row = table.rows[blame.row]
    last = len(table.ends) - 1 if blame.until is None else blame.until
    return SlowRank(
        rank=row.rank,
        pod=row.pod,
        gpu=row.gpu,
        since=table.times.steps[blame.since],
        since_at=table.starts[blame.since],
        until=None if blame.until is None else table.times.steps[last] + table.width - 1,
        until_at=table.ends[last],
        excess=blame.excess,
        p=blame.p,
    )

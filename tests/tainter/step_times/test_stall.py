"""A job that stalls, and the ranks that the others wait for."""

from random import Random

import pytest
from tests.tainter.step_times.scraped_jobs import START, Points, ScrapedJob, answer_of, judge
from tests.tainter.step_times.test_job_verdict import JOB

from muster_tainter.step_times.job_series import RankSeries
from muster_tainter.step_times.job_verdict import JobVerdict
from muster_tainter.step_times.stall import STALLED_S, find_stall


def hang(*behind: int, still_s: float = STALLED_S + 60) -> JobVerdict:
    """The job hangs: all ranks have completed the same step, but ``behind`` the one before."""

    def change(rank: int, points: Points) -> Points:
        at, _, total = points[-1]
        count = 5_000.0 - (rank in behind)
        return [*points[:-1], *((at + 30 * number, count, total) for number in range(int(still_s // 30) + 1))]

    return judge(answer_of(ScrapedJob(JOB.seconds(Random(1))), Random(2), change))


@pytest.mark.parametrize("behind", [(2,), (0, 3)])
def test_the_ranks_that_others_wait_for(behind: tuple[int, ...]) -> None:
    verdict = hang(*behind)
    assert (verdict.verdict, verdict.ranks) == ("stalled", 4)
    assert [slow.rank for slow in verdict.slow] == [*behind]
    assert {(slow.pod, slow.since, slow.until) for slow in verdict.slow} == {
        (f"train-{rank}", 4_999, None) for rank in behind
    }
    assert all(START < slow.since_at < slow.until_at for slow in verdict.slow)


@pytest.mark.parametrize("behind", [(), (0, 1, 2)])
def test_nobody_is_named_if_all_or_most_are_at_the_same_step(behind: tuple[int, ...]) -> None:
    verdict = hang(*behind)
    assert (verdict.verdict, verdict.slow) == ("stalled", ())


def test_a_short_pause_is_none() -> None:
    assert hang(2, still_s=STALLED_S - 60).verdict != "stalled"


def series(rank: int, count: float, *, step_s: float = 1.0, seen: float = 2_000.0) -> RankSeries:
    return RankSeries(rank, "", "", "", [1_000 - 10 * step_s, 1_000.0], [count - 10, count], [0.0, 1.0], seen)


def test_ten_long_steps_are_no_stall() -> None:
    assert find_stall([series(0, 10), series(1, 10)], 30.0) is not None
    assert find_stall([series(0, 10, step_s=101), series(1, 10, step_s=101)], 30.0) is None


def test_a_job_that_has_ended_has_not_stalled() -> None:
    assert find_stall([series(0, 10, seen=1_000.0), series(1, 10, seen=1_000.0)], 30.0) is None
    assert find_stall([series(0, 10, seen=1_000.0), series(1, 10)], 30.0) is None
    assert find_stall([], 30.0) is None


def test_ranks_that_count_other_steps_are_not_named() -> None:
    found = find_stall([series(0, 10), series(1, 9), series(2, 400)], 30.0)
    assert found is not None
    assert found.behind == ()

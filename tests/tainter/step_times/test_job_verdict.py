"""A job's scraped counters: the slow rank is named by rank, pod, step and time; unusable series count for nothing."""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.tainter.step_times.scraped_jobs import START, WORK, Answer, Points, ScrapedJob, answer_of, judge
from tests.tainter.stragglers.simulated_jobs import SimulatedJob, in_stages, slowed

from muster_tainter.step_times.job_verdict import JobVerdict
from muster_tainter.stragglers.skewed_work import data_cause
from muster_tainter.stragglers.verdict import FALSE_BLAME

STEPS = 1500
JOB = SimulatedJob(ranks=4, steps=STEPS, noise=0.05, correlation=0.3)


def slow_job(rank: int = 1, factor: float = 1.5, since: int = STEPS // 2, **more: Any) -> ScrapedJob:
    return ScrapedJob(slowed(JOB.seconds(Random(1)), rank, factor, since).seconds, **more)


def blamed(verdict: JobVerdict) -> list[int]:
    return [slow.rank for slow in verdict.slow]


def test_a_rank_that_becomes_slow() -> None:
    verdict = judge(answer_of(slow_job(first=5000), Random(2)))
    assert (verdict.verdict, verdict.ranks, verdict.left_out, verdict.unusable) == ("node", 4, (), 0)
    [slow] = verdict.slow
    assert (slow.rank, slow.pod, slow.gpu, slow.until) == (1, "train-1", "1", None)
    assert abs(slow.since - (5000 + STEPS // 2)) <= 60  # a reading each 30 steps or so
    assert START < slow.since_at < slow.until_at
    assert slow.excess == pytest.approx(0.5, abs=0.1)
    assert 0.3 < verdict.slowdown < 0.5
    assert slow.p <= FALSE_BLAME


def test_a_rank_that_was_slow_for_a_while() -> None:
    job = ScrapedJob(slowed(JOB.seconds(Random(1)), 2, 1.5, 300, 900).seconds)
    [slow] = judge(answer_of(job, Random(2))).slow
    assert slow.rank == 2
    assert slow.until is not None
    assert abs(slow.until - 900) <= 60
    assert slow.until_at < START + 1500


def test_the_bound_holds_for_all_windows_of_a_day() -> None:
    [slow] = judge(answer_of(ScrapedJob([row[:600] for row in slow_job(since=100).seconds]), Random(2)), looks=4).slow
    assert slow.p <= FALSE_BLAME / 4


def test_the_same_answer_gives_the_same_verdict() -> None:
    answer = answer_of(slow_job(), Random(3))
    assert judge(answer) == judge(answer)


def test_steps_that_take_longer_than_the_time_between_two_scrapes() -> None:
    seconds = [[40 * each for each in row] for row in SimulatedJob(8, 60, noise=0.05).seconds(Random(4))]
    job = ScrapedJob(slowed(seconds, 5, 1.5, since=20).seconds)
    [slow] = judge(answer_of(job, Random(5))).slow
    assert (slow.rank, abs(slow.since - 20) <= 2) == (5, True)


def test_ranks_of_one_pod_share_its_name() -> None:
    answer = answer_of(slow_job(), Random(2), more={"pod": "train-0"})
    assert {slow.pod for slow in judge(answer).slow} == {"train-0"}


def pipeline(seconds: list[list[float]], work: float = 1.4) -> ScrapedJob:
    """Two stages, the second of which has more work."""
    times = in_stages(seconds, 2, work)
    return ScrapedJob(times.seconds, stages=times.stages)


def test_a_slow_stage_names_its_first_rank_and_no_slow_one() -> None:
    verdict = judge(answer_of(pipeline(JOB.seconds(Random(1))), Random(2)))
    assert verdict.verdict == "stage"
    [slow] = verdict.slow
    assert (slow.stage, slow.rank, slow.pod, slow.until) == ("1", 1, "train-1", None)
    assert slow.excess == pytest.approx(0.4, abs=0.1)
    assert verdict.slowdown == pytest.approx(0.17, abs=0.05)


def test_a_slow_rank_counts_more_than_a_slow_stage() -> None:
    seconds = [list(row) for row in slowed(JOB.seconds(Random(1)), 2, 1.5, 300).seconds]
    verdict = judge(answer_of(pipeline(seconds), Random(2)))
    assert (verdict.verdict, blamed(verdict)) == ("node", [2])


def test_a_stage_that_not_all_ranks_name_is_none() -> None:
    answer = answer_of(pipeline(JOB.seconds(Random(1))), Random(2))
    for series in answer.result[:2]:
        del series["metric"]["stage"]
    assert judge(answer).verdict in ("node", "nobody")


def reset_at(half: int) -> Callable[[int, Points], Points]:
    """The whole job is started anew: its counters begin at 0."""

    def change(_rank: int, points: Points) -> Points:
        _, steps, seconds = points[half]
        return points[:half] + [(at, count - steps, total - seconds) for at, count, total in points[half:]]

    return change


def test_after_a_restart_only_the_steps_since_then_count() -> None:
    verdict = judge(answer_of(slow_job(first=5000), Random(2), reset_at(20)))
    [slow] = verdict.slow
    assert (slow.rank, slow.since < 1000) == (1, True)
    assert verdict.steps < STEPS * 0.75


def test_a_rank_that_moved_to_another_pod_has_the_later_series() -> None:
    answer, job, random = Answer(), slow_job(), Random(6)
    for rank in range(4):
        points = job.points(rank, random)
        half = len(points) // 4
        answer.add(points[:half], rank=str(rank), pod=f"old-{rank}")
        answer.add(points[half:], rank=str(rank), pod=f"new-{rank}")
    [slow] = judge(answer).slow
    assert (slow.rank, slow.pod) == (1, "new-1")


def test_two_jobs_of_one_name_at_once_are_ambiguous() -> None:
    answer = answer_of(slow_job(), Random(2))
    answer.result += answer_of(slow_job(), Random(3), more={"pod": "other"}).result
    assert judge(answer).verdict == "ambiguous"


@pytest.mark.parametrize("values", ["NaN", "+Inf", "-1", "x", ""])
def test_values_that_are_no_numbers_are_skipped(values: str) -> None:
    answer = answer_of(slow_job(), Random(2))
    for series in answer.result:
        for point in series["values"][3::7]:
            point[1] = values
    assert blamed(judge(answer)) == [1]
    for series in answer.result[:2]:
        for point in series["values"]:
            point[1] = values
    verdict = judge(answer)
    assert (blamed(verdict), verdict.ranks, verdict.unusable) == ([1], 3, 2)


def test_a_rank_that_stops_reporting_is_left_out() -> None:
    verdict = judge(answer_of(slow_job(), Random(2), lambda rank, points: points[:20] if rank == 3 else points))
    assert (verdict.verdict, blamed(verdict), verdict.left_out) == ("node", [1], (3,))


def test_a_rank_without_series_is_not_missed() -> None:
    verdict = judge(answer_of(slow_job(), Random(2), lambda rank, points: [] if rank == 3 else points))
    assert (verdict.ranks, blamed(verdict)) == (3, [1])


def test_ranks_that_count_other_steps_are_not_compared() -> None:
    def change(rank: int, points: Points) -> Points:
        return [(at, count + 10_000 * rank, total) for at, count, total in points]

    assert judge(answer_of(slow_job(), Random(2), change)).verdict == "steps_differ"


def test_times_out_of_order_are_skipped() -> None:
    answer = answer_of(slow_job(), Random(2))
    for series in answer.result:
        series["values"][5], series["values"][6] = series["values"][6], series["values"][5]
    assert blamed(judge(answer)) == [1]


@pytest.mark.parametrize(
    ("ranks", "steps", "verdict"), [(1, STEPS, "one_rank"), (4, 3, "too_few_steps"), (4, 100, "too_few_steps")]
)
def test_too_little_to_compare(ranks: int, steps: int, verdict: str) -> None:
    job = ScrapedJob([row[:steps] for row in slow_job().seconds[:ranks]])
    assert judge(answer_of(job, Random(2))).verdict == verdict


def test_seconds_that_do_not_rise_are_unusable() -> None:
    job = answer_of(slow_job(), Random(2), lambda _rank, points: [(at, count, 5.0) for at, count, _ in points])
    assert judge(job).verdict == "too_few_steps"


@pytest.mark.parametrize(
    "labels",
    [{"rank": "-1"}, {"rank": "1.5"}, {"rank": "\u0663"}, {"rank": "9" * 20}, {}, {"rank": "3", "__name__": "up"}],
)
def test_series_without_a_rank_are_counted(labels: dict[str, str]) -> None:
    answer = answer_of(slow_job(), Random(2))
    answer.result.append({"metric": {"__name__": "muster_step_seconds_sum", **labels}, "values": [[START, "1"]]})
    verdict = judge(answer)
    assert (blamed(verdict), verdict.unusable) == ([1], 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"status": "error"}',
        b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}, "warnings": ["a store is down"]}',
        b"[" * 100_000,
        b'{"status": "success", "data": {"resultType": "matrix", "result": 7}}',
    ],
)
def test_an_answer_that_is_none_is_unusable(body: bytes) -> None:
    assert judge(body).verdict == "unusable"


def test_series_that_are_nonsense_are_counted() -> None:
    answer = answer_of(slow_job(), Random(2))
    nonsense = [7, {}, {"metric": {"a": 1}}, {"metric": {}, "values": [["x"]]}, {"metric": {}, "histograms": []}]
    body = json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": [*nonsense, *answer.result]}}
    ).encode()
    verdict = judge(body)
    assert (blamed(verdict), verdict.unusable) == ([1], len(nonsense))


@pytest.mark.parametrize("seed", range(12))
def test_random_answers_never_raise(seed: int) -> None:
    random = Random(seed)
    answer = answer_of(slow_job(), random)
    for series in answer.result:
        for point in series["values"]:
            if random.random() < 0.3:
                point[1] = random.choice(["NaN", "0", "1e308", "-5", "7", str(random.random() * 1e4), "1e-320"])
        random.shuffle(series["values"])
        if random.random() < 0.2:
            series["metric"]["rank"] = random.choice(["0", "1", "x", ""])
    verdict = judge(answer)
    assert verdict.verdict in ("nobody", "node", "stage", "too_few_steps", "ambiguous", "steps_differ", "one_rank")
    assert all(math.isfinite(slow.excess) for slow in verdict.slow)


def test_ten_thousand_series() -> None:
    ranks, reading_s = 5_000, 75.0
    answer = Answer(read_s=reading_s)
    for rank in range(ranks):
        random = Random(rank)
        steps = [(START + 60 * number, float(number), 60 * number + random.random()) for number in range(24)]
        answer.add(steps, rank=str(rank), pod=f"train-{rank}")
    assert len(answer.result) == 10_000
    verdict = judge(answer)
    assert (verdict.verdict, verdict.ranks, verdict.unusable) == ("nobody", ranks, 0)


def uneven(random: Random, noise: float = 0.03, ranks: int = 8, steps: int = 600) -> tuple[list[list[float]], ...]:
    """(seconds, work): each rank has another amount in each of 60 long phases, as with sequences of other lengths."""
    phases = [[random.uniform(0.6, 1.6) for _ in range(60)] for _ in range(ranks)]
    work = [[1000 * phase for phase in row for _ in range(steps // 60)] for row in phases]
    seconds = [[amount / 1000 * random.gauss(1.0, noise) for amount in row] for row in work]
    return seconds, work


def test_ranks_with_more_work_are_skewed_data_and_no_slow_rank() -> None:
    seconds, work = uneven(Random(1))
    verdict = judge(answer_of(ScrapedJob(seconds, work=work, scrape_s=15.0), Random(2)))
    assert verdict.verdict == "data"
    assert verdict.slowdown > 0.1
    [most] = verdict.slow
    assert most.rank == max(range(8), key=lambda rank: sum(work[rank]))
    assert (most.pod, most.until) == (f"train-{most.rank}", None)


def test_a_rank_that_always_has_more_work_is_blamed_only_if_the_job_does_not_say_so() -> None:
    seconds = slowed(JOB.seconds(Random(1)), 1, 1.5, since=0).seconds
    work = [[1500.0 if rank == 1 else 1000.0] * STEPS for rank in range(4)]
    assert judge(answer_of(ScrapedJob(seconds), Random(2))).verdict == "node"
    told = judge(answer_of(ScrapedJob(seconds, work=work), Random(2)))
    assert (told.verdict, blamed(told)) == ("data", [1])


def test_a_rank_that_is_slow_for_its_work_is_blamed_beside_others_with_more_work() -> None:
    seconds, work = uneven(Random(1))
    seconds[5] = [3.0 * each for each in seconds[5]]
    verdict = judge(answer_of(ScrapedJob(seconds, work=work, scrape_s=15.0), Random(2)))
    assert (verdict.verdict, blamed(verdict)) == ("node", [5])


@pytest.mark.parametrize("lost", [True, False])
def test_without_the_work_of_all_ranks_it_counts_for_nothing(lost: bool) -> None:
    seconds, work = uneven(Random(1))
    answer = answer_of(ScrapedJob(seconds, work=work, scrape_s=15.0), Random(2))
    of_rank = [series for series in answer.result if series["metric"]["__name__"] == WORK][3]
    if lost:
        answer.result.remove(of_rank)
    else:
        of_rank["values"][7][1] = "NaN"
    assert judge(answer).verdict in ("nobody", "too_few_steps")


def judged_with_work(columns: int, noise: float) -> str:
    """Eight ranks whose times follow their work, but for noise: standard deviations of logarithms."""
    random = Random(1)
    work = [[random.lognormvariate(7, 0.4) for _ in range(columns)] for _ in range(8)]
    seconds = [[amount * random.lognormvariate(0, noise) for amount in row] for row in work]
    cause = data_cause(seconds, work, [range(8)], 0.001, random)
    return "" if cause is None else cause.kind


@pytest.mark.parametrize(
    ("columns", "noise", "kind"),
    [(60, 0.05, "data"), (60, 0.3, ""), (3, 0.05, "")],
    ids=["times follow the work", "correlation below 0.9", "too few steps for a proof"],
)
def test_what_proves_skewed_data(columns: int, noise: float, kind: str) -> None:
    assert judged_with_work(columns, noise) == kind

"""Slow ranks are named, with since when, and what they cost; other differences between ranks are nobody's fault."""

from random import Random

import pytest
from tests.shared_data import SharedData
from tests.tainter.stragglers.recorded_jobs import mini_batches
from tests.tainter.stragglers.simulated_jobs import SimulatedJob, in_stages, slowed, step_times

from muster_cli.stragglers.operation_trace import read_operation_trace
from muster_tainter.stragglers.step_times import StepTimes, judge_step_times
from muster_tainter.stragglers.verdict import NOBODY, NODE, STAGE, Blame, TooFewSteps, Verdict

JOB = SimulatedJob(ranks=8, steps=200, noise=0.05, correlation=0.3)


def judge(times: StepTimes) -> Verdict:
    return judge_step_times(times, Random(0))


def blamed(verdict: Verdict) -> tuple[Blame, ...]:
    return verdict.causes[0].blamed if verdict.causes else ()


def test_a_rank_that_becomes_slow() -> None:
    verdict = judge(slowed(JOB.seconds(Random(1)), rank=5, factor=1.4, since=120))
    assert verdict.kind == NODE
    [blame] = blamed(verdict)
    assert (blame.row, blame.until) == (5, None)
    assert abs(blame.since - 120) <= 3
    assert blame.excess == pytest.approx(0.4, abs=0.05)
    assert blame.p <= verdict.false_blame
    # without it, the slowest of seven ranks, which is above their median by chance
    assert 0.2 < verdict.causes[0].slowdown < 0.4


def test_a_rank_that_is_slow_for_a_while() -> None:
    [blame] = blamed(judge(slowed(JOB.seconds(Random(2)), rank=0, factor=1.5, since=60, until=90)))
    assert blame.row == 0
    assert abs(blame.since - 60) <= 3
    assert blame.until is not None
    assert abs(blame.until - 89) <= 3


def test_two_slow_ranks_do_not_hide_each_other() -> None:
    times = slowed(JOB.seconds(Random(3)), rank=2, factor=1.5, since=50)
    times = slowed([list(row) for row in times.seconds], rank=6, factor=1.3, since=100)
    assert {blame.row for blame in blamed(judge(times))} == {2, 6}


def test_one_of_two_ranks() -> None:
    job = SimulatedJob(ranks=2, steps=60, noise=0.05)
    assert [blame.row for blame in blamed(judge(slowed(job.seconds(Random(4)), 1, 1.3, since=0)))] == [1]


def test_a_slow_rank_among_many() -> None:
    job = SimulatedJob(ranks=256, steps=60, noise=0.1)
    assert [blame.row for blame in blamed(judge(slowed(job.seconds(Random(5)), 200, 1.4, since=20)))] == [200]


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.05])
def test_a_rank_that_is_hardly_slower_or_faster_is_not_blamed(factor: float) -> None:
    assert judge(slowed(JOB.seconds(Random(6)), rank=3, factor=factor, since=0)).kind == NOBODY


def test_ranks_that_differ_steadily_are_not_blamed() -> None:
    seconds = [[second * (1 + 0.1 * rank) for second in row] for rank, row in enumerate(JOB.seconds(Random(7)))]
    assert judge(step_times(seconds)).kind == NOBODY


def test_steps_that_are_slow_for_all_are_nobodys_fault() -> None:
    seconds = [[second * (3 if 50 <= step < 80 else 1) for step, second in enumerate(row)] for row in
               JOB.seconds(Random(8))]  # fmt: skip
    assert judge(step_times(seconds)).kind == NOBODY


def test_very_long_steps_are_not_blamed_and_hide_nobody() -> None:
    seconds = [list(row) for row in slowed(JOB.seconds(Random(9)), rank=1, factor=1000, since=30, until=32).seconds]
    assert judge(step_times(seconds)).kind == NOBODY
    assert [blame.row for blame in blamed(judge(slowed(seconds, rank=4, factor=1.25, since=140)))] == [4]


def test_equal_times() -> None:
    assert judge(step_times([[1.0] * 50] * 4)).kind == NOBODY


def test_too_few_steps_for_any_proof() -> None:
    with pytest.raises(TooFewSteps) as error:
        judge(step_times([[1.0], [9.0], [1.0]]))
    assert (error.value.steps, error.value.needed) == (1, 7)


def test_correlated_steps_ask_for_more_of_them() -> None:
    job = SimulatedJob(ranks=4, steps=40, noise=0.4, correlation=0.9)
    assert max(judge(step_times(job.seconds(Random(seed)))).needed for seed in range(5)) > 40


def test_the_same_times_give_the_same_verdict() -> None:
    times = slowed(JOB.seconds(Random(10)), rank=5, factor=1.2, since=120)
    assert judge(times) == judge(times)


def test_recorded_job_with_one_straggler_in_the_middle(shared_data: SharedData) -> None:
    verdict = judge(step_times(mini_batches(shared_data, 1)))
    assert verdict.kind == NODE
    [blame] = blamed(verdict)
    assert (blame.row, blame.since, blame.until) == (6, 181, 194)


def test_recorded_job_whose_workers_differ_steadily(shared_data: SharedData) -> None:
    assert judge(step_times(mini_batches(shared_data, 2))).kind == NOBODY


PIPELINE = SimulatedJob(ranks=16, steps=100, noise=0.03, correlation=0.3)


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_a_stage_with_more_work_is_no_nodes_fault(stages: int) -> None:
    verdict = judge(in_stages(PIPELINE.seconds(Random(10)), stages, work=1.4))
    [cause] = verdict.causes
    assert (cause.kind, [blame.row for blame in cause.blamed]) == (STAGE, [stages - 1])
    # the slowest stage against the mean of all
    assert cause.slowdown == pytest.approx(1.4 / (1 + 0.4 / stages) - 1, abs=0.05)


@pytest.mark.parametrize("rank", [2, 3])  # of an even stage; of the stage with more work
def test_a_slow_rank_of_a_pipeline_is_compared_with_its_own_stage(rank: int) -> None:
    seconds = [list(row) for row in slowed(PIPELINE.seconds(Random(11)), rank, 1.5, since=40).seconds]
    causes = {cause.kind: cause for cause in judge(in_stages(seconds, 4, work=1.4)).causes}
    assert {kind: [blame.row for blame in cause.blamed] for kind, cause in causes.items()} == {NODE: [rank], STAGE: [3]}
    assert causes[NODE].blamed[0].excess == pytest.approx(0.5, abs=0.05)


def test_a_slow_rank_of_two_in_a_stage_does_not_make_the_stage_slow() -> None:
    job = SimulatedJob(ranks=8, steps=100, noise=0.03)
    verdict = judge(in_stages([list(row) for row in slowed(job.seconds(Random(12)), 1, 1.6, since=0).seconds], 4))
    assert [(cause.kind, [blame.row for blame in cause.blamed]) for cause in verdict.causes] == [(NODE, [1])]


def test_steps_that_are_too_few_for_stages_may_do_for_ranks() -> None:
    seconds = [
        list(row) for row in slowed(SimulatedJob(32, 8, noise=0.02).seconds(Random(14)), 5, 2.0, since=0).seconds
    ]
    assert [blame.row for blame in blamed(judge(in_stages(seconds, 2)))] == [5]
    even = judge(in_stages(SimulatedJob(32, 8, noise=0.02).seconds(Random(14)), 2))
    assert (even.kind, even.needed > 8) == (NOBODY, True)


def test_a_pipeline_of_one_rank_a_stage_has_no_slow_rank() -> None:
    assert judge(in_stages(SimulatedJob(8, 100, noise=0.03).seconds(Random(13)), 8)).kind == NOBODY


def test_a_recorded_job_with_a_slow_stage(shared_data: SharedData) -> None:
    """Its operations added up to step times, as a running job reports them."""
    operations, _ = read_operation_trace(shared_data.folder / "traces/straggler_ST.parquet")
    stages = [str(stage) for _, stage, _ in operations.workers]
    times = StepTimes(range(len(stages)), operations.steps, operations.seconds(), stages)
    [cause] = judge(times).causes
    assert (cause.kind, [stages[blame.row] for blame in cause.blamed]) == (STAGE, ["3"])

"""A job without a slow rank is blamed on one no more often than the bound. The jobs come from hypothesis_seed."""

import math
from random import Random

import pytest
from tests.shared_data import SharedData
from tests.tainter.stragglers.recorded_jobs import mini_batches
from tests.tainter.stragglers.simulated_jobs import SimulatedJob, in_stages, step_times
from tests.tainter.stragglers.test_operations import job as judge_trace

from muster_tainter.stragglers.step_times import judge_step_times
from muster_tainter.stragglers.verdict import DATA, FALSE_BLAME, NOBODY

FEW = 30  # jobs of each kind; `make soak` plays 2,000, so 10,000 permutations of recorded jobs in all
JOBS = {
    "independent steps": SimulatedJob(ranks=8, steps=100, noise=0.05),
    "very noisy steps": SimulatedJob(ranks=8, steps=100, noise=0.3),
    "correlated steps": SimulatedJob(ranks=8, steps=100, noise=0.2, correlation=0.5),
    "slow moments of six steps": SimulatedJob(ranks=16, steps=300, noise=0.3, correlation=0.7),
    "slow moments of nineteen steps": SimulatedJob(ranks=16, steps=300, noise=0.2, correlation=0.9),
    "pauses": SimulatedJob(ranks=8, steps=100, noise=0.05, pauses=0.05),
}
PERMUTED = [(1, 1), (1, 10), (2, 10), (3, 1), (3, 10)]  # Alibaba's job, steps in a block


def most_allowed(jobs: int) -> float:
    """With four standard deviations above the bound, chance fails one run in 30,000."""
    return jobs * FALSE_BLAME + 4 * math.sqrt(jobs * FALSE_BLAME) + 1


def first_and_count(pytestconfig: pytest.Config) -> tuple[int, int]:
    return int(pytestconfig.getoption("hypothesis_seed")), pytestconfig.getoption("examples") or FEW


@pytest.mark.parametrize("name", JOBS)
def test_random_lives_of_jobs_without_a_slow_rank(name: str, pytestconfig: pytest.Config) -> None:
    first, count = first_and_count(pytestconfig)
    blamed = []
    for seed in range(first, first + count):
        random = Random(seed)
        if judge_step_times(step_times(JOBS[name].seconds(random)), random).kind != NOBODY:
            blamed.append(seed)
    assert len(blamed) <= most_allowed(count), blamed


@pytest.mark.parametrize("ranks", [8, 16])
def test_random_lives_of_pipelines_without_a_slow_rank(ranks: int, pytestconfig: pytest.Config) -> None:
    """Four stages, one of which is four times as noisy as the others: only ranks of one stage are exchangeable."""
    first, count = first_and_count(pytestconfig)
    quiet, noisy = SimulatedJob(ranks, steps=100, noise=0.05, correlation=0.3), SimulatedJob(ranks, 100, noise=0.2)
    blamed = []
    for seed in range(first, first + count):
        random = Random(seed)
        rows = [[*pair] for pair in zip(quiet.seconds(random), noisy.seconds(random), strict=True)]
        times = in_stages([pair[row % 4 == 1] for row, pair in enumerate(rows)], 4)
        if judge_step_times(times, random).kind != NOBODY:
            blamed.append(seed)
    assert len(blamed) <= most_allowed(count), blamed


@pytest.mark.parametrize(("job", "block"), PERMUTED)
def test_random_lives_of_recorded_jobs_with_permuted_ranks(
    job: int, block: int, shared_data: SharedData, pytestconfig: pytest.Config
) -> None:
    first, count = first_and_count(pytestconfig)
    recorded = mini_batches(shared_data, job)
    blamed = []
    for seed in range(first, first + count):
        random = Random(seed)
        permuted = [list[float]() for _ in recorded]
        for step in range(0, len(recorded[0]), block):
            for row, other in zip(permuted, random.sample(recorded, len(recorded)), strict=True):
                row += other[step : step + block]
        if judge_step_times(step_times(permuted), random).kind != NOBODY:
            blamed.append(seed)
    assert len(blamed) <= most_allowed(count), blamed


@pytest.mark.parametrize(("dp_count", "stage_count"), [(4, 3), (8, 1), (2, 4)])
def test_random_lives_of_operation_traces_without_a_cause(
    dp_count: int, stage_count: int, pytestconfig: pytest.Config
) -> None:
    first, count = first_and_count(pytestconfig)
    seeds = range(first, first + count)
    blamed = [seed for seed in seeds if judge_trace(seed, dp_count, stage_count, noise=0.3).kind != NOBODY]
    assert len(blamed) <= most_allowed(count), blamed


def test_random_lives_of_operation_traces_with_skewed_data_blame_no_worker(pytestconfig: pytest.Config) -> None:
    """A third of a second each, so fewer of them."""
    first, count = first_and_count(pytestconfig)
    seeds = range(first, first + 1 + count // 20)
    blamed = [seed for seed in seeds if {cause.kind for cause in judge_trace(seed, skew=0.4).causes} - {DATA}]
    assert len(blamed) <= most_allowed(len(seeds)), blamed

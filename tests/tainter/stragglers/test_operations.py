"""A slow worker, a slow stage and skewed data are told apart in operation traces."""

import math
from collections.abc import Mapping
from random import Random
from types import MappingProxyType

import pytest

from muster_tainter.stragglers.operations import Operations, judge_operations
from muster_tainter.stragglers.verdict import DATA, NOBODY, NODE, STAGE, Verdict

MICROBATCHES, STEPS = 4, 40


def job(
    seed: int, dp_count: int = 4, stage_count: int = 3, *, skew: float = 0.0, noise: float = 0.01,
    slow: Mapping[tuple[int | None, int | None], float] = MappingProxyType({}),
) -> Verdict:  # fmt: skip
    """skew: standard deviation of the logarithm of a microbatch's work. noise: likewise, of a single pass.

    slow: the factors of time of (dp rank, stage); None: of all of them.
    """
    random = Random(seed)
    work = {
        (dp_rank, step, microbatch): random.gauss(0, skew)
        for dp_rank in range(dp_count)
        for step in range(STEPS)
        for microbatch in range(MICROBATCHES)
    }
    names = [
        (dp_rank, stage, dp_rank * stage_count + stage) for dp_rank in range(dp_count) for stage in range(stage_count)
    ]

    def passes(dp_rank: int, stage: int, seconds: float) -> list[list[float]]:
        keys = {(dp_rank, stage), (dp_rank, None), (None, stage)}
        factor = seconds * math.prod(slow[key] for key in keys & set(slow))
        return [
            [factor * math.exp(work[dp_rank, step, number] + random.gauss(0, noise)) for number in range(MICROBATCHES)]
            for step in range(STEPS)
        ]

    forward = [passes(dp_rank, stage, 0.1) for dp_rank, stage, _ in names]
    backward = [passes(dp_rank, stage, 0.2) for dp_rank, stage, _ in names]
    return judge_operations(Operations(names, dp_count, stage_count, range(STEPS), forward, backward), random)


def blamed(verdict: Verdict) -> list[int]:
    return [blame.row for blame in verdict.causes[0].blamed]


def test_nobody() -> None:
    assert all(job(seed).kind == NOBODY for seed in range(5))


def test_a_slow_worker() -> None:
    verdict = job(1, slow={(2, 1): 1.5})
    assert (verdict.kind, blamed(verdict)) == (NODE, [2 * 3 + 1])
    assert 0.4 < verdict.causes[0].slowdown < 0.5


def test_a_slow_worker_without_pipeline() -> None:
    verdict = job(2, dp_count=6, stage_count=1, slow={(4, 0): 1.3})
    assert (verdict.kind, blamed(verdict)) == (NODE, [4])


def test_a_slow_worker_is_found_below_skewed_data() -> None:
    verdict = job(3, skew=0.4, slow={(1, 0): 1.5})
    assert {NODE, DATA} == {cause.kind for cause in verdict.causes}
    [node] = [cause for cause in verdict.causes if cause.kind == NODE]
    assert [blame.row for blame in node.blamed] == [1 * 3 + 0]


def test_a_slow_stage() -> None:
    verdict = job(4, slow={(None, 2): 1.6})
    assert (verdict.kind, blamed(verdict)) == (STAGE, [2])
    # 1.6 against the mean of 1, 1 and 1.6
    assert abs(verdict.causes[0].slowdown - (1.6 / 1.2 - 1)) < 0.03


def test_a_slow_stage_of_a_job_without_data_parallelism() -> None:
    verdict = job(5, dp_count=1, stage_count=4, slow={(None, 0): 1.6})
    assert (verdict.kind, blamed(verdict)) == (STAGE, [0])


def test_skewed_data() -> None:
    assert job(6, skew=0.4).kind == DATA


@pytest.mark.parametrize(("skew", "noise"), [(0.0, 0.6), (0.3, 0.4)])
def test_noise_that_costs_as_much_as_skewed_data_is_nobodys_fault(skew: float, noise: float) -> None:
    """Microbatches that are slow together in all stages by half do not explain the time."""
    assert job(10, skew=skew, noise=noise).kind == NOBODY


def test_skewed_data_without_pipeline() -> None:
    assert job(7, dp_count=8, stage_count=1, skew=0.4).kind == DATA


def test_a_dp_rank_that_is_slow_in_all_its_stages_blames_no_worker() -> None:
    assert NODE not in {cause.kind for cause in job(8, slow={(2, None): 1.5}).causes}


def test_the_costliest_cause_is_the_verdict() -> None:
    verdict = job(9, slow={(None, 2): 1.3, (0, 0): 3.0})
    assert [cause.kind for cause in verdict.causes] == [NODE, STAGE]

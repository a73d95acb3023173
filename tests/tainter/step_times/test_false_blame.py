"""A job whose scraped counters have no slow rank is blamed on one no more often than the bound."""

import math
from random import Random

import pytest
from tests.tainter.step_times.scraped_jobs import ScrapedJob, answer_of, judge
from tests.tainter.stragglers.simulated_jobs import SimulatedJob

from muster_tainter.stragglers.verdict import FALSE_BLAME

FEW = 12  # jobs of each kind, 13 ms each; `make soak` plays 2,000
JOBS = {
    "independent steps": SimulatedJob(ranks=8, steps=1200, noise=0.05),
    "slow moments that last": SimulatedJob(ranks=8, steps=1200, noise=0.15, correlation=0.9),
    "pauses": SimulatedJob(ranks=8, steps=1200, noise=0.05, correlation=0.3, pauses=0.005),
    "two ranks": SimulatedJob(ranks=2, steps=900, noise=0.1, correlation=0.5),
}


@pytest.mark.parametrize("name", JOBS)
def test_random_lives_of_jobs_without_a_slow_rank(name: str, pytestconfig: pytest.Config) -> None:
    """Judged as often as once a day: with more windows, the bound for each is smaller in proportion."""
    first = int(pytestconfig.getoption("hypothesis_seed"))
    count = pytestconfig.getoption("examples") or FEW
    blamed = []
    for seed in range(first, first + count):
        random = Random(seed)
        if judge(answer_of(ScrapedJob(JOBS[name].seconds(random)), random)).slow:
            blamed.append(seed)
    # with four standard deviations above the bound, chance fails one run in 30,000
    assert len(blamed) <= count * FALSE_BLAME + 4 * math.sqrt(count * FALSE_BLAME) + 1, blamed

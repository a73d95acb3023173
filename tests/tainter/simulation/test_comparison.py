"""Intervals of resampled fleets, and policies that the data can or cannot tell apart."""

import pytest
from tests.tainter.simulation.worlds import fault, fleet_file, policy, scenario

from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.comparison import (
    GOODPUT,
    INTERRUPTIONS,
    MEASURES,
    Case,
    difference,
    estimate,
    quantile_t,
    run_one,
    runs,
)
from muster_tainter.simulation.outcome import Outcome

REPLICATES = 8
HELD = "holdDown: {base: 8h, longest: 1d, halfLife: 30d}\n"


def compared(*policies: Policy, replicates: int = REPLICATES) -> list[list[Outcome]]:
    """Twelve nodes; half of them fail every six hours for two days."""
    flapping = [
        fault(1 + 6 * again + number / 10, 2 + 6 * again + number / 10, f"gpu-{number}")
        for number in range(1, 7)
        for again in range(8)
    ]
    world = scenario(*flapping, fleet=fleet_file(nodes=12, hours=60))
    found: list[list[Outcome]] = [[] for _ in policies]
    for which in runs(len(policies), replicates):
        found[which[0]].append(run_one(world, [Case(each) for each in policies], which))
    return found


def test_same_policy_twice_cannot_be_told_apart() -> None:
    one, other = compared(policy(), policy())
    for measure in MEASURES:
        found = difference(one, other, measure)
        assert found.value in (0, None)
        assert not found.tells_apart


def test_policy_that_prevents_interruptions_is_told_apart() -> None:
    free, held = compared(policy("holdDown: {base: 0s}\n"), policy(HELD))
    fewer = difference(held, free, INTERRUPTIONS)
    assert fewer.tells_apart
    assert fewer.value is not None
    assert fewer.value < -10
    assert estimate(held, GOODPUT).low is not None


def test_interval_covers_the_value_and_needs_replicates() -> None:
    (outcomes,) = compared(policy())
    found = estimate(outcomes, INTERRUPTIONS)
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert found.low < found.value < found.high
    assert estimate(outcomes[:1], INTERRUPTIONS) == (found.value, None, None)


def test_order_of_runs_has_the_real_fleet_first() -> None:
    assert runs(2, 1) == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.776), (9, 2.262), (24, 2.064), (99, 1.984)])
def test_quantile_of_t(freedom: int, expected: float) -> None:
    assert quantile_t(freedom) == pytest.approx(expected, rel=0.01)

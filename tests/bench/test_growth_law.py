"""Costs that grow with the fleet pass, costs that grow faster do not; with the noise of a busy machine."""

import math
import random

import pytest
from tests.bench.harness.growth_law import fit, too_fast

SIZES = (100, 1000, 5000, 15000)


def _points(cost: object, noise: float, seed: int) -> list[tuple[float, float]]:
    assert callable(cost)
    rng = random.Random(seed)
    return [(size, cost(size) * math.exp(rng.gauss(0, noise))) for size in SIZES for _ in range(2)]


def test_a_power_is_found_again() -> None:
    found = fit([(size, 3.0 * size**0.7) for size in SIZES])
    assert found.exponent == pytest.approx(0.7, abs=0.01)
    assert found.factor == pytest.approx(3.0, rel=1e-3)
    assert found.low <= 0.71
    assert found.high >= 0.69
    assert found.high - found.low < 0.05
    assert found.at(50_000) == pytest.approx(3.0 * 50_000**0.7, rel=1e-3)


def test_a_known_base_is_no_growth() -> None:
    points = [(size, 60e6 + 3000.0 * size) for size in SIZES]
    assert fit(points, 60e6).exponent == pytest.approx(1.0, abs=0.02)
    assert fit(points).exponent < 0.2


@pytest.mark.parametrize("seed", range(4))
def test_a_base_that_hides_small_fleets_adds_no_noise(seed: int) -> None:
    found = fit(_points(lambda size: 0.9 + 0.2e-3 * size, 0.08, seed), 0.9)
    assert found.low > 0.5
    assert found.high < 2.0
    assert not too_fast(found, 1.0)
    assert too_fast(fit(_points(lambda size: 0.9 + 2e-8 * size**2, 0.08, seed), 0.9), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_not_too_fast(seed: int) -> None:
    assert not too_fast(fit(_points(lambda size: 0.2e-3 * size, 0.15, seed)), 1.0)
    assert not too_fast(fit(_points(lambda _: 15.0, 0.15, seed)), 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_faster_growth_is_found(seed: int) -> None:
    assert too_fast(fit(_points(lambda size: 0.2e-3 * size**1.4, 0.15, seed)), 1.0)
    assert too_fast(fit(_points(lambda size: 15.0 * size**0.4, 0.15, seed)), 0.0)
    # a scan of all nodes for each fault: it is small beside a constant in small fleets
    assert too_fast(fit(_points(lambda size: 10.0 + 0.01 * size, 0.15, seed)), 0.0)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0), (2.0, 2.0)], [(5.0, 1.0), (5.0, 2.0), (5.0, 3.0)]])
def test_too_few_points_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="needs 3 of 2"):
        fit(points)

"""How a cost grows with the size of the fleet: a law, the interval of its exponent, and what is too fast.

``cost = base + factor * size ** exponent``. ``base`` is what the program takes without any node, and is measured. The
other two are fitted by least squares of the logarithm of the cost: a cost that is 10 % off counts the same at each
size, and so a base that hides the growth in small fleets adds no noise. The interval holds the exponents whose best
factor is not significantly worse (profile likelihood, by Student's t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# two-sided 95 % quantiles of Student's t by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T95_MANY = 1.960
SMALLEST = 1e-9  # a cost of nothing has no logarithm
EXPONENTS = [step / 50 for step in range(-25, 151)]
FACTOR_RANGE = 12.0  # powers of e below what the points say without the base
FACTOR_STEP = 1e-4
MARGIN = 0.1  # an exponent this much above the allowed one may be noise, also where the interval says otherwise
LAST_STEP_MARGIN = 0.35  # of the two largest sizes alone, which have no interval


@dataclass(frozen=True)
class Fit:
    """low, high: 95 % interval of the exponent. last: the exponent between the medians of the two largest sizes."""

    factor: float
    exponent: float
    low: float
    high: float
    last: float

    def at(self, size: float) -> float:
        """Without the base."""
        return self.factor * size**self.exponent


def fit(points: Sequence[tuple[float, float]], base: float = 0.0) -> Fit:
    """points: (size, cost), of at least three, and two different sizes. Raises ValueError."""
    if len(points) < 3 or len({size for size, _ in points}) < 2:
        raise ValueError(f"{len(points)} points of {len({size for size, _ in points})} sizes: needs 3 of 2")
    tried = [(*_best_factor(points, base, exponent), exponent) for exponent in EXPONENTS]
    least, factor, exponent = min(tried)
    freedom = len(points) - 2
    t95 = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    likely = [each for error, _, each in tried if error <= least * (1 + t95**2 / freedom) + SMALLEST]
    return Fit(factor, exponent, min(likely), max(likely), _last_step(points, base))


def _best_factor(points: Sequence[tuple[float, float]], base: float, exponent: float) -> tuple[float, float]:
    """The sum of squared errors, and the factor, by ternary search on its logarithm: the sum has one minimum."""
    powers = [(size**exponent, math.log(max(cost, SMALLEST))) for size, cost in points]
    middle = [log_cost - math.log(power) for power, log_cost in powers]
    if not base:
        mean = sum(middle) / len(middle)
        return sum((each - mean) ** 2 for each in middle), math.exp(mean)

    def error(log_factor: float) -> float:
        factor = math.exp(log_factor)
        return sum((log_cost - math.log(base + factor * power)) ** 2 for power, log_cost in powers)

    low, high = min(middle) - FACTOR_RANGE, max(middle) + 1.0
    while high - low > FACTOR_STEP:
        third = (high - low) / 3
        if error(low + third) <= error(high - third):
            high -= third
        else:
            low += third
    return error(low), math.exp(low)


def _last_step(points: Sequence[tuple[float, float]], base: float) -> float:
    sizes = sorted({size for size, _ in points})[-2:]
    less, more = (max(_median([cost for size, cost in points if size == each]) - base, SMALLEST) for each in sizes)
    return math.log(more / less) / math.log(sizes[1] / sizes[0])


def _median(values: Sequence[float]) -> float:
    ranked, middle = sorted(values), len(values) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


def too_fast(found: Fit, allowed: float) -> str:
    """Why a cost grows faster than ``size ** allowed``; empty if it does not, or if that cannot be told from noise.

    allowed: 1 for what a fleet costs in all (not more a node in a larger fleet), 0 for what one fault costs.
    """
    if found.low > allowed + MARGIN:
        return f"exponent {found.exponent:.2f}, at least {found.low:.2f}, allowed {allowed:g}"
    if found.last > allowed + LAST_STEP_MARGIN and found.exponent > allowed + MARGIN:
        return f"exponent {found.last:.2f} between the two largest sizes, allowed {allowed:g}"
    return ""

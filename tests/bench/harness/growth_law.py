"""How a cost grows with the size of the fleet: a line through the logarithms, its interval, and what is too fast.

``cost = factor * size ** exponent``, fitted by least squares (ordinary regression of log cost on log size, interval by
Student's t). What a cost is at no size at all is subtracted first where it is known: memory of the program itself, for
example. Otherwise a constant would hide the growth of what is small beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# two-sided 95 % quantiles of Student's t by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T95_MANY = 1.960
SMALLEST = 1e-9  # a cost of nothing has no logarithm
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
        return self.factor * size**self.exponent


def fit(points: Sequence[tuple[float, float]], base: float = 0.0) -> Fit:
    """points: (size, cost), of at least three, and two different sizes. Raises ValueError."""
    if len(points) < 3 or len({size for size, _ in points}) < 2:
        raise ValueError(f"{len(points)} points of {len({size for size, _ in points})} sizes: needs 3 of 2")
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(max(cost - base, SMALLEST)) for _, cost in points]
    count = len(points)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = mean_y - exponent * mean_x
    residual = sum((y - intercept - exponent * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(residual / (count - 2) / spread)
    half = (_T95[count - 3] if count - 3 < len(_T95) else _T95_MANY) * error
    return Fit(math.exp(intercept), exponent, exponent - half, exponent + half, _last_step(points, base))


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

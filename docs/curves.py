"""Pictures of the bench as SVG: curves on two logarithmic axes. Plain text, so that a diff shows changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 44, 46
COLORS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce")


@dataclass(frozen=True)
class Curve:
    """points: (size, cost), measured. law: (size, cost) of two sizes, drawn as a dashed line through the logarithms."""

    name: str
    points: Sequence[tuple[float, float]]
    law: Sequence[tuple[float, float]] = ()


def chart(title: str, x_title: str, y_title: str, curves: Sequence[Curve]) -> str:
    """Both axes are logarithmic. Points that are not positive are left out."""
    shown = [[(x, y) for x, y in [*curve.points, *curve.law] if x > 0 and y > 0] for curve in curves]
    every = [point for points in shown for point in points]
    if not every:
        raise ValueError(f"{title}: no positive point")
    x_axis = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#334155">'
        f"{escape(x_title)}</text>",
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle" '
        f'fill="#334155">{escape(y_title)}</text>',
    ]
    for value in x_axis.ticks():
        at = x_axis.at(value)
        lines.append(_line(at, TOP, at, HEIGHT - BOTTOM, "#e2e8f0"))
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_short(value)}</text>')
    for value in y_axis.ticks():
        at = y_axis.at(value)
        lines.append(_line(LEFT, at, WIDTH - RIGHT, at, "#e2e8f0"))
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    for number, (curve, color) in enumerate(zip(curves, COLORS, strict=False)):
        if curve.law:
            (x1, y1), (x2, y2) = curve.law
            ends = x_axis.at(x1), y_axis.at(y1), x_axis.at(x2), y_axis.at(y2)
            lines.append(_line(*ends, color, ' stroke-dasharray="5 4"'))
        for x, y in curve.points:
            if x > 0 and y > 0:
                lines.append(f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3.5" fill="{color}"/>')
        at = TOP + 10 + 20 * number
        lines.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{at}" r="4" fill="{color}"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 26}" y="{at + 4}" fill="#0f172a">{escape(curve.name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


class _Axis:
    """From a value to a place between ``begin`` and ``end``, by its logarithm; whole powers of ten at both ends."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"

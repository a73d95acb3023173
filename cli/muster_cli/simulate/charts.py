"""Plots of a comparison as SVG, for one page: they use the colours of its style sheet and need no script.

Each plot is drawn twice, wide and for the width of a telephone, because scaled text could not be read; the style sheet
shows the one that fits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from muster_tainter.simulation.comparison import Estimate, Measure
from muster_tainter.simulation.ledger import BUCKETS, Cause


class Canvas(NamedTuple):
    """Sizes in pixels. left: where bars begin; with 0, names stand above them. right: for values; row: for one bar."""

    kind: str
    width: int
    left: int
    right: int
    row: int

    @property
    def above(self) -> int:
        """Room for the name above a row."""
        return 0 if self.left else 20


WIDE = Canvas("wide-plot", 900, 170, 60, 34)
NARROW = Canvas("narrow-plot", 380, 0, 56, 54)
Plot = Callable[[Canvas], str]

LOST = (
    Cause.FAULT, Cause.REWORK, Cause.DRAIN, Cause.TEST, Cause.HOLD, Cause.SPARE, Cause.WAIT, Cause.OVERHEAD, Cause.IDLE,
)  # fmt: skip
WORDS = {
    Cause.FAULT: "broken hardware",
    Cause.REWORK: "re-work after faults",
    Cause.DRAIN: "re-work after drains",
    Cause.TEST: "tests after a repair",
    Cause.HOLD: "hold-down",
    Cause.SPARE: "spares",
    Cause.WAIT: "free while jobs waited",
    Cause.OVERHEAD: "starts and checkpoints",
    Cause.IDLE: "idle without demand",
}


class Bar(NamedTuple):
    """A policy and the share of all accelerator-hours by cause."""

    name: str
    shares: dict[Cause, float]


def both(plot: Plot) -> str:
    return plot(WIDE) + plot(NARROW)


def lost_hours(bars: Sequence[Bar], canvas: Canvas = WIDE) -> str:
    """Stacked bars: where the hours went that were no goodput."""
    most = max((sum(bar.shares.values()) for bar in bars), default=0.0) or 1.0
    ticks = _ticks(0.0, most)
    scale = (canvas.width - canvas.left - canvas.right) / max(most, ticks[-1])
    height = canvas.row * len(bars) + 34
    parts = [*_grid(ticks, 0.0, scale, height - 30, "%", canvas)]
    for place, bar in enumerate(bars):
        x, y = float(canvas.left), 6 + place * canvas.row + canvas.above
        parts.append(_name(bar.name, y, canvas))
        for cause in LOST:
            width = bar.shares[cause] * scale
            if width > 0.05:
                title = f"{bar.name}: {WORDS[cause]}: {bar.shares[cause]:.3f} % of all accelerator-hours"
                place_and_size = f'x="{x:.1f}" y="{y}" width="{max(width - 0.8, 0.4):.1f}" height="22"'
                parts.append(f'<rect class="c-{_class(cause)}" {place_and_size}><title>{escape(title)}</title></rect>')
            x += width
        parts.append(_text(x + 6, y + 16, f"{sum(bar.shares.values()):.2f} %", "start", "value"))
    return _svg(height, parts, "Accelerator-hours that were no goodput, by cause", canvas)


def legend(bars: Sequence[Bar]) -> str:
    used = [cause for cause in LOST if any(bar.shares[cause] > 0.0005 for bar in bars)]
    return "".join(f'<li><i class="b-{_class(cause)}"></i>{WORDS[cause]}</li>' for cause in used)


def intervals(
    names: Sequence[str], found: Sequence[Estimate], measure: Measure, title: str, canvas: Canvas = WIDE
) -> str:
    """A dot with its 95 % interval for each policy, on a scale that need not begin at zero."""
    unit, digits = ("%" if measure.unit == "%" else ""), measure.digits
    values = [number for each in found for number in each if number is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    low, high = (max(low - 0.08 * span, 0.0) if min(values) >= 0 else low - 0.08 * span), high + 0.08 * span
    ticks = [tick for tick in _ticks(low, high) if low <= tick <= high]
    left, right = canvas.left or 10, canvas.width - canvas.right - (60 if canvas.left else 12)
    scale = (right - left) / (high - low)
    height = canvas.row * len(names) + 34
    parts = [*_grid(ticks, low, scale, height - 30, unit, canvas._replace(left=left))]
    for place, (name, each) in enumerate(zip(names, found, strict=True)):
        y = 17 + place * canvas.row + canvas.above
        parts.append(_name(name, y - 11, canvas))
        if each.value is None:
            continue
        x = left + (each.value - low) * scale
        if each.low is not None and each.high is not None:
            first, last = (left + (max(number, low) - low) * scale for number in (each.low, each.high))
            parts.append(f'<path class="whisker p-{place % 6}" d="M{first:.1f} {y}H{last:.1f}M{first:.1f} {y - 5}v10'
                         f'M{last:.1f} {y - 5}v10"/>')  # fmt: skip
        label = f"{each.value:,.{digits}f}{unit}"
        parts.append(f'<circle class="dot f-{place % 6}" cx="{x:.1f}" cy="{y}" r="5"><title>{label}</title></circle>')
        parts.append(_text(right + 16, y + 5, label, "start", "value"))
    return _svg(height, parts, title, canvas)


def over_time(
    names: Sequence[str], series: Sequence[Sequence[float]], labels: Sequence[str], canvas: Canvas = WIDE
) -> str:
    """Lines: the share of accelerators out of use. labels: of the begin, the middle and the end."""
    left, height, bottom = (60 if canvas.left else 34), 230, 200
    end = canvas.width - (canvas.right if canvas.left else 6)
    most = max((max(each) for each in series), default=0.0) * 100 or 1.0
    ticks = _ticks(0.0, most)
    top = max(ticks[-1], most)
    scale, step = (bottom - 12) / top, (end - left) / BUCKETS
    parts = []
    for tick in ticks:
        y = bottom - tick * scale
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{end}"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:g}%", "end", "tick"))
    for place in reversed(range(len(series))):
        path = "".join(
            f"{'M' if number == 0 else 'L'}{left + number * step:.1f} {bottom - 100 * value * scale:.1f}"
            f"H{left + (number + 1) * step:.1f}"
            for number, value in enumerate(series[place])
        )
        parts.append(f'<path class="line p-{place % 6}" d="{path}"><title>{escape(names[place])}</title></path>')
    for place, label in enumerate(labels):
        x = left + place * (end - left) / max(len(labels) - 1, 1)
        anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
        parts.append(_text(x, bottom + 20, label, anchor, "tick"))
    return _svg(height, parts, "Share of accelerators out of use, over time", canvas)


class Point(NamedTuple):
    name: str
    across: Estimate
    up: Estimate


def trade(points: Sequence[Point], canvas: Canvas = WIDE) -> str:
    """Goodput over the working accelerators that were kept out, with both intervals."""
    left, height, bottom = (70 if canvas.left else 46), 320, 270
    end = canvas.width - (130 if canvas.left else 6)
    room = canvas.width - (200 if canvas.left else 110)  # for the names beside the dots
    (x_low, x_high), (y_low, y_high) = (_span([getattr(point, axis) for point in points]) for axis in ("across", "up"))
    x_scale, y_scale = (room - left) / (x_high - x_low), (bottom - 14) / (y_high - y_low)
    parts = []
    for tick in _ticks(y_low, y_high):
        if y_low <= tick <= y_high:
            y = bottom - (tick - y_low) * y_scale
            parts.append(f'<path class="grid" d="M{left} {y:.1f}H{end}"/>')
            parts.append(_text(left - 8, y + 4, f"{tick:g}%", "end", "tick"))
    for tick in _ticks(x_low, x_high):
        if x_low <= tick <= x_high:
            x = left + (tick - x_low) * x_scale
            parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v5"/>')
            parts.append(_text(x, bottom + 20, f"{tick:g}%", "middle", "tick"))
    parts.append(_text((left + end) / 2, bottom + 42, "working accelerators kept out of use", "middle", "axis"))
    parts.append(_text(left, 10, "goodput", "start", "axis"))
    placed: list[tuple[float, float]] = []
    for place, point in enumerate(points):
        if point.across.value is None or point.up.value is None:
            continue
        x, y = left + (point.across.value - x_low) * x_scale, bottom - (point.up.value - y_low) * y_scale
        if point.up.low is not None and point.up.high is not None:
            ends = [bottom - (number - y_low) * y_scale for number in (point.up.low, point.up.high)]
            parts.append(f'<path class="whisker p-{place % 6}" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>')
        if point.across.low is not None and point.across.high is not None:
            ends = [left + (max(number, x_low) - x_low) * x_scale for number in (point.across.low, point.across.high)]
            parts.append(f'<path class="whisker p-{place % 6}" d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}"/>')
        parts.append(f'<circle class="dot f-{place % 6}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>')
        placed.append(_free_place(x + 11, y - 8, placed))
        parts.append(_text(*placed[-1], _short(point.name), "start", "name"))
    return _svg(height, parts, "Goodput over working accelerators kept out of use", canvas)


def _free_place(x: float, y: float, placed: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """For a name: below those that it would cover."""
    while any(abs(x - other_x) < 150 and abs(y - other_y) < 16 for other_x, other_y in placed):
        y += 16
    return x, y


def _span(found: Sequence[Estimate]) -> tuple[float, float]:
    values = [number for each in found for number in each if number is not None]
    low, high = max(min(values), 0.0), max(values)
    margin = 0.1 * ((high - low) or abs(high) or 1.0)
    return max(low - margin, 0.0), high + margin


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover the range."""
    rough = (high - low) / 5 or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    return [round(number * step, 9) for number in range(first, last + 1)]


def _grid(ticks: Sequence[float], low: float, scale: float, bottom: int, unit: str, canvas: Canvas) -> Iterator[str]:
    for tick in ticks:
        x = canvas.left + (tick - low) * scale
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>'
        yield _text(x, bottom + 18, f"{tick:,.10g}{unit}", "middle" if x > 12 else "start", "tick")


def _name(name: str, y: int, canvas: Canvas) -> str:
    """Of a row whose top is ``y``: beside it, or above."""
    if canvas.left:
        return _text(canvas.left - 10, y + 16, _short(name), "end", "name")
    return _text(0, y - 6, _short(name, 44), "start", "name")


def _class(cause: Cause) -> str:
    return str(cause).replace("-", "")


def _short(name: str, most: int = 20) -> str:
    """The end of ``pools.all.spares.nodes=2``, which differs; the begin of other names."""
    if len(name) <= most:
        return name
    return f"…{name[1 - most :]}" if "=" in name else f"{name[: most - 1]}…"


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, parts: Sequence[str], title: str, canvas: Canvas) -> str:
    inside, box = "".join(parts), f"0 0 {canvas.width} {height}"
    return f'<svg class="{canvas.kind}" viewBox="{box}" role="img" aria-label="{escape(title)}">{inside}</svg>'

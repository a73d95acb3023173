"""Plots of a comparison as SVG, for one page: they use the colours of its style sheet and need no script."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from muster_tainter.simulation.comparison import Estimate
from muster_tainter.simulation.ledger import BUCKETS, Cause

WIDTH = 900
LEFT, RIGHT = 170, 60
ROW = 34
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


def lost_hours(bars: Sequence[Bar]) -> str:
    """Stacked bars: where the hours went that were no goodput."""
    most = max((sum(bar.shares.values()) for bar in bars), default=0.0) or 1.0
    ticks = _ticks(0.0, most)
    scale = (WIDTH - LEFT - RIGHT) / max(most, ticks[-1])
    height = ROW * len(bars) + 34
    parts = [*_grid(ticks, 0.0, scale, height - 30, "%")]
    for place, bar in enumerate(bars):
        x, y = float(LEFT), 6 + place * ROW
        parts.append(_text(LEFT - 10, y + 16, _short(bar.name), "end", "name"))
        for cause in LOST:
            width = bar.shares[cause] * scale
            if width > 0.05:
                title = f"{bar.name}: {WORDS[cause]}: {bar.shares[cause]:.3f} % of all accelerator-hours"
                place_and_size = f'x="{x:.1f}" y="{y}" width="{max(width - 0.8, 0.4):.1f}" height="22"'
                parts.append(f'<rect class="c-{_class(cause)}" {place_and_size}><title>{escape(title)}</title></rect>')
            x += width
        parts.append(_text(x + 6, y + 16, f"{sum(bar.shares.values()):.2f} %", "start", "value"))
    return _svg(height, parts, "Accelerator-hours that were no goodput, by cause")


def legend(bars: Sequence[Bar]) -> str:
    used = [cause for cause in LOST if any(bar.shares[cause] > 0.0005 for bar in bars)]
    return "".join(f'<li><i class="b-{_class(cause)}"></i>{WORDS[cause]}</li>' for cause in used)


def intervals(names: Sequence[str], found: Sequence[Estimate], unit: str, digits: int, title: str) -> str:
    """A dot with its 95 % interval for each policy, on a scale that need not begin at zero."""
    values = [number for each in found for number in each if number is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    low, high = (max(low - 0.08 * span, 0.0) if min(values) >= 0 else low - 0.08 * span), high + 0.08 * span
    ticks = [tick for tick in _ticks(low, high) if low <= tick <= high]
    scale = (WIDTH - LEFT - RIGHT - 60) / (high - low)
    height = ROW * len(names) + 34
    parts = [*_grid(ticks, low, scale, height - 30, unit)]
    for place, (name, each) in enumerate(zip(names, found, strict=True)):
        y = 17 + place * ROW
        parts.append(_text(LEFT - 10, y + 5, _short(name), "end", "name"))
        if each.value is None:
            continue
        x = LEFT + (each.value - low) * scale
        if each.low is not None and each.high is not None:
            first, last = (LEFT + (max(number, low) - low) * scale for number in (each.low, each.high))
            parts.append(f'<path class="whisker p-{place % 6}" d="M{first:.1f} {y}H{last:.1f}M{first:.1f} {y - 5}v10'
                         f'M{last:.1f} {y - 5}v10"/>')  # fmt: skip
        label = f"{each.value:,.{digits}f}{unit}"
        parts.append(f'<circle class="dot f-{place % 6}" cx="{x:.1f}" cy="{y}" r="5"><title>{label}</title></circle>')
        parts.append(_text(WIDTH - RIGHT - 44, y + 5, label, "start", "value"))
    return _svg(height, parts, title)


def over_time(names: Sequence[str], series: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    """Lines: the share of accelerators out of use. labels: of the begin, the middle and the end."""
    left, height, bottom = 60, 230, 200
    most = max((max(each) for each in series), default=0.0) * 100 or 1.0
    ticks = _ticks(0.0, most)
    top = max(ticks[-1], most)
    scale, step = (bottom - 12) / top, (WIDTH - left - RIGHT) / BUCKETS
    parts = []
    for tick in ticks:
        y = bottom - tick * scale
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:g}%", "end", "tick"))
    for place in reversed(range(len(series))):
        path = "".join(
            f"{'M' if number == 0 else 'L'}{left + number * step:.1f} {bottom - 100 * value * scale:.1f}"
            f"H{left + (number + 1) * step:.1f}"
            for number, value in enumerate(series[place])
        )
        parts.append(f'<path class="line p-{place % 6}" d="{path}"><title>{escape(names[place])}</title></path>')
    for place, label in enumerate(labels):
        x = left + place * (WIDTH - left - RIGHT) / max(len(labels) - 1, 1)
        anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
        parts.append(_text(x, bottom + 20, label, anchor, "tick"))
    return _svg(height, parts, "Share of accelerators out of use, over time")


class Point(NamedTuple):
    name: str
    across: Estimate
    up: Estimate


def trade(points: Sequence[Point]) -> str:
    """Goodput over the working accelerators that were kept out, with both intervals."""
    left, height, bottom = 70, 320, 270
    (x_low, x_high), (y_low, y_high) = (_span([getattr(point, axis) for point in points]) for axis in ("across", "up"))
    x_scale, y_scale = (WIDTH - left - 200) / (x_high - x_low), (bottom - 14) / (y_high - y_low)
    parts = []
    for tick in _ticks(y_low, y_high):
        if y_low <= tick <= y_high:
            y = bottom - (tick - y_low) * y_scale
            parts.append(f'<path class="grid" d="M{left} {y:.1f}H{WIDTH - 130}"/>')
            parts.append(_text(left - 8, y + 4, f"{tick:g}%", "end", "tick"))
    for tick in _ticks(x_low, x_high):
        if x_low <= tick <= x_high:
            x = left + (tick - x_low) * x_scale
            parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v5"/>')
            parts.append(_text(x, bottom + 20, f"{tick:g}%", "middle", "tick"))
    parts.append(_text((left + WIDTH - 130) / 2, bottom + 42, "working accelerators kept out of use", "middle", "axis"))
    parts.append(_text(left, 10, "goodput", "start", "axis"))
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
        parts.append(_text(x + 11, y - 8, _short(point.name), "start", "name"))
    return _svg(height, parts, "Goodput over working accelerators kept out of use")


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


def _grid(ticks: Sequence[float], low: float, scale: float, bottom: int, unit: str) -> Iterator[str]:
    for tick in ticks:
        x = LEFT + (tick - low) * scale
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>'
        yield _text(x, bottom + 18, f"{tick:,.10g}{unit}", "middle", "tick")


def _class(cause: Cause) -> str:
    return str(cause).replace("-", "")


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, parts: Sequence[str], title: str) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{inside}</svg>'

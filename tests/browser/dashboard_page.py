"""Draws a dashboard of grafana/ from what its queries find, as a page of HTML and SVG: a picture for the documents.

It is not Grafana. It takes the same JSON: grid, titles, units, colours, thresholds, mappings, columns. What Grafana
does beyond that (tooltips, zoom, its fonts and spacing) it leaves out.
"""

import html
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from muster_sandbox.prometheus import PrometheusSeries

Object = dict[str, Any]
Answers = Mapping[int, Sequence[Sequence[PrometheusSeries]]]  # by the panel's id, for each of its queries

WIDTH, CELL, GAP = 1600, 30, 8  # pixels; as Grafana's own grid
COLUMN = (WIDTH - 2 * GAP) / 24
PALETTE = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#5195ce", "#ba43a9", "#a793d6", "#508642", "#cca300")
LEGENDS, ROWS_LIMIT = 5, 60
STYLE = """
body { margin: 0; background: #0f1217; color: #d6dbe1; font: 13px/1.4 Inter, "DejaVu Sans", sans-serif;
       font-variant-numeric: tabular-nums; }
header { padding: 10px 14px 2px; font-size: 18px; font-weight: 600; }
header small { font-weight: 400; font-size: 12px; color: #8f9aa6; margin-left: 12px; }
main { position: relative; }
section { position: absolute; background: #171b21; border: 1px solid #262c35; border-radius: 3px; overflow: hidden; }
h2 { margin: 0; padding: 5px 9px 3px; font-size: 13px; font-weight: 600; white-space: nowrap; overflow: hidden; }
h1 { position: absolute; margin: 0; font-size: 14px; font-weight: 600; color: #aab4bf; padding: 5px 4px; }
.stat { position: absolute; inset: 30px 6px 6px; display: grid; place-items: center; border-radius: 3px;
        font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: #7db8ff; font-weight: 500; padding: 2px 9px; border-bottom: 1px solid #2b323c; }
td { padding: 2px 9px; border-bottom: 1px solid #20262e; white-space: nowrap; max-width: 300px; overflow: hidden;
     text-overflow: ellipsis; }
.n { text-align: right; }
.legend { position: absolute; left: 9px; right: 6px; bottom: 4px; font-size: 11px; color: #aab4bf; white-space: nowrap;
          overflow: hidden; }
.legend i { display: inline-block; width: 12px; height: 3px; margin: 0 4px 3px 0; }
.legend span { margin-right: 12px; }
text { fill: #8f9aa6; font-size: 11px; }
"""


def page(board: Object, answers: Answers, chosen: str) -> tuple[str, int]:
    """The page and its height in pixels. chosen: what its variables are set to, in words."""
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    panels = "".join(_panel(panel, answers.get(panel["id"], ())) for panel in board["panels"])
    title = f"<header>{_text(board['title'])}<small>{_text(chosen)}</small></header>"
    height = bottom * (CELL + GAP) + 50
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{title}<main>{panels}</main>',
        height,
    )


def _panel(panel: Object, found: Sequence[Sequence[PrometheusSeries]]) -> str:
    place = panel["gridPos"]
    left, top = GAP + place["x"] * COLUMN, place["y"] * (CELL + GAP)
    width, height = place["w"] * COLUMN - GAP, place["h"] * (CELL + GAP) - GAP
    if panel["type"] == "row":
        return f'<h1 style="left:{left:.0f}px;top:{top:.0f}px">{_text(panel["title"])}</h1>'
    draw = {"stat": _stat, "table": _table, "timeseries": _graph, "state-timeline": _timeline}[panel["type"]]
    box = f"left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"
    return f'<section style="{box}"><h2>{_text(panel["title"])}</h2>{draw(panel, found, width, height)}</section>'


def _text(text: object) -> str:
    return html.escape(str(text))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value as Grafana would write it, near enough."""
    if math.isnan(value):
        return ""
    if unit == "s":
        if value and abs(value) < 1:
            return f"{value * 1000:.3g} ms"
        return (
            f"{value:.3g} s"
            if abs(value) < 90
            else f"{value / 60:.3g} min"
            if abs(value) < 5400
            else f"{value / 3600:.3g} h"
        )
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "Bps":
        return _scaled(value, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))
    if unit in ("celsius", "watt"):
        return f"{value:.3g} {'°C' if unit == 'celsius' else 'W'}"
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.4g}" if abs(value) < 1000 else _scaled(value, ("", "K", "Mil", "Bil"))


def _scaled(value: float, names: Sequence[str]) -> str:
    step = 0
    while abs(value) >= 1000 and step < len(names) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {names[step]}".strip()


def _colour(steps: Sequence[Object], value: float) -> str:
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return str(reached[-1]) if reached else "#aab4bf"


def _mapped(mappings: Sequence[Object], value: object) -> Object | None:
    """How a value is called and coloured, if it has a name of its own."""
    key = f"{value:g}" if isinstance(value, float) else str(value)
    for mapping in mappings:
        if key in mapping["options"]:
            found: Object = mapping["options"][key]
            return found
    return None


def _on(colour: str) -> str:
    """What can be read on it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#10151b" if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else "#e8eef4"


def _last(series: PrometheusSeries) -> float:
    return series.points[-1][1] if series.points else math.nan


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    if pattern == "__auto":
        return ", ".join(value for name, value in labels.items() if name != "__name__") or "value"
    for name, value in labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def _stat(panel: Object, found: Sequence[Sequence[PrometheusSeries]], width: float, height: float) -> str:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    if not found or not found[0]:
        return '<div class="stat">no data</div>'
    series = found[0][0]
    value = _last(series)
    mapped = _mapped(defaults["mappings"], value)
    colour = mapped["color"] if mapped else _colour(defaults["thresholds"]["steps"], value)
    text = mapped["text"] if mapped else shown(value, defaults["unit"], defaults.get("decimals"))
    if options["textMode"] == "name":
        text = _legend(panel["targets"][0]["legendFormat"], series.labels)
    size = min(34.0, width / max(3, len(text)) * 1.2)
    look = f"background:{colour};color:{_on(colour)}" if options["colorMode"] == "background" else f"color:{colour}"
    return f'<div class="stat" style="font-size:{size:.0f}px;{look}">{_text(text)}</div>'


def _table(panel: Object, found: Sequence[Sequence[PrometheusSeries]], width: float, height: float) -> str:
    organize = panel["transformations"][-1]["options"]
    names = organize["renameByName"]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str | float]] = {}
    for target, result in zip(panel["targets"], found, strict=True):
        column = names.get("Value" if len(found) == 1 else f"Value #{target['refId']}", "")
        for series in result:
            labels = {name: value for name, value in series.labels.items() if name != "__name__"}
            row = rows.setdefault(tuple(sorted(labels.items())), dict(labels))
            row[column] = _last(series)
    columns = [names.get(name, name) for name, _ in sorted(organize["indexByName"].items(), key=lambda item: item[1])]
    overrides = {each["matcher"]["options"]: each["properties"] for each in panel["fieldConfig"]["overrides"]}
    sort = panel["options"]["sortBy"][0]
    lines = sorted(rows.values(), key=lambda row: _order(row.get(sort["displayName"], "")), reverse=sort["desc"])
    numbers = {name for row in rows.values() for name, value in row.items() if isinstance(value, float)}
    head = "".join(f"<th{' class=n' if name in numbers else ''}>{_text(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(row.get(name, ""), overrides.get(name, ())) for name in columns) + "</tr>"
        for row in lines[:ROWS_LIMIT]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _order(value: str | float) -> tuple[float, str]:
    return (value, "") if isinstance(value, float) else (0.0, value)


def _cell(value: str | float, properties: Sequence[Object]) -> str:
    said = {each["id"]: each["value"] for each in properties}
    mapped = _mapped(said.get("mappings", ()), value)
    colour = mapped["color"] if mapped else ""
    if isinstance(value, float):
        if "thresholds" in said:
            colour = _colour(said["thresholds"]["steps"], value)
        text = shown(value, said.get("unit", "short"), said.get("decimals"))
        return f'<td class="n" style="color:{colour}">{text}</td>' if colour else f'<td class="n">{text}</td>'
    if "links" in said:
        colour = "#7db8ff"
    return f'<td style="color:{colour}">{_text(value)}</td>' if colour else f"<td>{_text(value)}</td>"


def _graph(panel: Object, found: Sequence[Sequence[PrometheusSeries]], width: float, height: float) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    fixed = {
        each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"]
        for each in panel["fieldConfig"]["overrides"]
    }
    lines: list[tuple[str, str, list[tuple[float, float]]]] = []
    for target, result in zip(panel["targets"], found, strict=True):
        for series in result:
            points = [(at, value) for at, value in series.points if not math.isnan(value)]
            name = _legend(target["legendFormat"], series.labels)
            lines.append((name, fixed.get(name, PALETTE[len(lines) % len(PALETTE)]), points))
    lines = [line for line in lines if line[2]]
    if not lines:
        return '<div class="stat">no data</div>'
    stacked = custom["stacking"]["mode"] == "normal"
    times = [at for _, _, points in lines for at, _ in points]
    first, last = min(times), max(*times, min(times) + 1)
    base: dict[float, float] = {}
    drawn: list[tuple[str, str, list[tuple[float, float, float]]]] = []
    for name, colour, points in lines:
        floors = [(at, base.get(at, 0.0), value) for at, value in points]
        drawn.append((name, colour, [(at, floor, floor + value) for at, floor, value in floors]))
        if stacked:
            base |= {at: floor + value for at, floor, value in floors}
    tops = [top for _, _, points in drawn for _, _, top in points]
    low = min(0.0, *tops) if "min" in defaults else min(tops)
    high = max(tops)
    marks = [step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None]
    ticks = _ticks(low, high if high > low else low + 1)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    left, right, top, bottom = 62.0, width - 12, 8.0, height - 78

    def x(at: float) -> float:
        return left + (at - first) / (last - first) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    parts = []
    for tick in ticks:
        label = shown(tick, defaults["unit"])
        parts.append(f'<line x1="{left}" x2="{right:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#262c35"/>')
        parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    for part in range(4):
        at = first + (last - first) * part / 4
        label = time.strftime("%H:%M:%S", time.gmtime(at))
        parts.append(f'<text x="{x(at):.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{label}</text>')
    for mark in marks if custom["thresholdsStyle"]["mode"] != "off" else ():
        if low <= mark <= high:
            parts.append(
                f'<line x1="{left}" x2="{right:.1f}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#8f9aa6" '
                'stroke-dasharray="5 4"/>'
            )
    for _, colour, points in drawn:
        parts.append(
            _bars(points, colour, x, y) if custom["drawStyle"] == "bars" else _line(points, colour, stacked, x, y)
        )
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{_text(name)}</span>' for name, colour, _ in drawn[:LEGENDS]
    ) + (f"<span>and {len(drawn) - LEGENDS} more</span>" if len(drawn) > LEGENDS else "")
    drawing = f'<svg width="{width:.0f}" height="{height - 50:.0f}">{"".join(parts)}</svg>'
    return f'{drawing}<div class="legend">{legend}</div>'


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    return [step * number for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _line(points: Any, colour: str, stacked: bool, x: Any, y: Any) -> str:
    way = " ".join(f"{x(at):.1f},{y(top):.1f}" for at, _, top in points)
    under = " ".join(f"{x(at):.1f},{y(floor):.1f}" for at, floor, _ in reversed(points))
    area = f'<polygon points="{way} {under}" fill="{colour}" fill-opacity="{0.55 if stacked else 0}"/>'
    if len(points) == 1:
        [(at, _, top)] = points
        return f'<circle cx="{x(at):.1f}" cy="{y(top):.1f}" r="2.5" fill="{colour}"/>'
    return f'{area}<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _bars(points: Any, colour: str, x: Any, y: Any) -> str:
    return "".join(
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(floor):.1f}" y2="{y(top):.1f}" stroke="{colour}" '
        'stroke-width="3"/>'
        for at, floor, top in points
        if top > floor
    )


def _timeline(panel: Object, found: Sequence[Sequence[PrometheusSeries]], width: float, height: float) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    result = [series for series in found[0] if series.points]
    if not result:
        return '<div class="stat">no data</div>'
    times = [at for series in result for at, _ in series.points]
    first, last = min(times), max(*times, min(times) + 1)
    by_name: dict[str, list[tuple[float, float]]] = {}
    for series in result:
        by_name.setdefault(_legend(panel["targets"][0]["legendFormat"], series.labels), []).extend(series.points)
    left, right = 110.0, width - 12
    row = (height - 88) / len(by_name)
    parts = []
    for number, (name, points) in enumerate(sorted(by_name.items())):
        points.sort()
        top = 6 + number * row
        parts.append(f'<text x="{left - 8}" y="{top + row / 2 + 4:.1f}" text-anchor="end">{_text(name)}</text>')
        for (at, value), (until, _) in zip(points, [*points[1:], (last, 0.0)], strict=True):
            mapped = _mapped(defaults["mappings"], value)
            colour = mapped["color"] if mapped else "#55636f"
            start, end = (left + (each - first) / (last - first) * (right - left) for each in (at, until))
            parts.append(
                f'<rect x="{start:.1f}" y="{top:.1f}" width="{max(0.5, end - start + 0.4):.1f}" '
                f'height="{row * 0.85:.1f}" fill="{colour}"/>'
            )
    for part in range(4):
        at = first + (last - first) * part / 4
        label = time.strftime("%H:%M:%S", time.gmtime(at))
        parts.append(
            f'<text x="{left + (right - left) * part / 4:.1f}" y="{height - 66:.1f}" '
            f'text-anchor="middle">{label}</text>'
        )
    legend = "".join(
        f'<span><i style="background:{each["color"]};height:9px"></i>{each["text"]}</span>'
        for each in defaults["mappings"][0]["options"].values()
    )
    drawing = f'<svg width="{width:.0f}" height="{height - 50:.0f}">{"".join(parts)}</svg>'
    return f'{drawing}<div class="legend">{legend}</div>'

"""A dashboard's parts in the form of Grafana's schemaVersion 36: what Grafana 9.0 writes, and later ones migrate.

Panels are laid out in rows of 24 columns, in the order in which they are given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.colours import COLOURS, FAIL, NEUTRAL, PASS, PLAIN, QUIET, SKIP, UNKNOWN, VERDICTS, WARN, Steps

SCHEMA_VERSION = 36
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "muster"

Object = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """expr: PromQL. legend: Grafana's, with {{label}}. column: in a table, what its value is called."""

    expr: str
    legend: str = ""
    column: str = ""


@dataclass(frozen=True)
class Column:
    """How a column of a table is shown. colour: the background is coloured by ``steps``, or by a word of COLOURS."""

    unit: str = ""
    steps: Steps = ()
    words: bool = False
    width: int = 0
    to_node: bool = False
    decimals: int | None = None


@dataclass
class Panel:
    """height, width: in Grafana's grid, of 24 columns. body: the rest of its JSON."""

    title: str
    height: int
    width: int
    body: Object = field(default_factory=dict)


Row = str | Sequence[Panel]  # a heading, or panels side by side


def rises(metric: str, scope: str, by: str = "", window: str = "$__rate_interval") -> str:
    """How often a counter rose within ``window``, by labels ``by``. scope: matchers.

    A counter with labels appears with its first event, and increase() does not see that one: a series that was not
    there a window ago counts in full.
    """
    counted = f"{metric}{{{scope}}}"
    group = f" by ({by})" if by else ""
    return f"sum{group} (({counted} unless {counted} offset {window}) or increase({counted}[{window}]))"


def _targets(queries: Sequence[Query], *, instant: bool, table: bool = False) -> list[Object]:
    return [
        {
            "datasource": SOURCE,
            "expr": query.expr,
            "format": "table" if table else "time_series",
            "instant": instant,
            "range": not instant,
            "legendFormat": query.legend or "__auto",
            "refId": chr(ord("A") + number),
        }
        for number, query in enumerate(queries)
    ]


def _steps(steps: Steps) -> Object:
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for value, colour in steps]}


def _mappings(values: Mapping[int, tuple[str, str]]) -> list[Object]:
    if not values:
        return []
    options = {
        str(value): {"text": text, "color": colour, "index": number}
        for number, (value, (text, colour)) in enumerate(values.items())
    }
    return [{"type": "value", "options": options}]


def _panel(kind: str, title: str, means: str, height: int, width: int, **body: Any) -> Panel:
    return Panel(title, height, width, {"type": kind, "description": means, "datasource": SOURCE, **body})


def _hushed(colour: str) -> str:
    return QUIET if colour == PASS else colour


def _quiet(steps: Steps) -> Steps:
    return [(value, _hushed(colour)) for value, colour in steps]


def stat(
    title: str,
    query: Query,
    means: str,
    *,
    steps: Steps = NEUTRAL,
    unit: str = "short",
    values: Mapping[int, tuple[str, str]] | None = None,
    width: int = 3,
    height: int = 4,
    name: bool = False,
    decimals: int | None = None,
) -> Panel:
    """One number. values: what numbers are called. name: show the legend, not the number."""
    defaults: Object = {
        "unit": unit,
        "color": {"mode": "thresholds"},
        "thresholds": _steps(_quiet(steps)),
        "mappings": _mappings({key: (text, _hushed(colour)) for key, (text, colour) in (values or {}).items()}),
        "noValue": "no data",
        **({"decimals": decimals} if decimals is not None else {}),
    }
    options = {
        "colorMode": "background" if steps is not NEUTRAL or values else "value",
        "graphMode": "none",
        "justifyMode": "center",
        "orientation": "auto",
        "textMode": "name" if name else "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return _panel(
        "stat", title, means, height, width,
        fieldConfig={"defaults": defaults, "overrides": []}, options=options, targets=_targets([query], instant=True),
    )  # fmt: skip


def graph(
    title: str,
    queries: Sequence[Query],
    means: str,
    *,
    unit: str = "short",
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    bars: bool = False,
    width: int = 12,
    height: int = 8,
    steps: Steps = (),
    least: float | None = 0,
    decimals: int | None = None,
) -> Panel:
    """Values over time. colours: by legend. steps: drawn as lines across."""
    custom: Object = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 60 if bars or stacked else 0,
        "gradientMode": "none",
        "showPoints": "auto",
        "pointSize": 4,
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    defaults: Object = {
        "unit": unit,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "thresholds": _steps(steps or ((None, PASS),)),
        "mappings": [],
        **({"min": least} if least is not None else {}),
        **({"decimals": decimals} if decimals is not None else {}),
    }
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in (colours or {}).items()
    ]
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel(
        "timeseries", title, means, height, width,
        fieldConfig={"defaults": defaults, "overrides": overrides}, options=options,
        targets=_targets(queries, instant=False),
    )  # fmt: skip


def timeline(title: str, query: Query, means: str, *, width: int = 24, height: int = 9) -> Panel:
    """Verdicts over time, one line for each series; the query gives numbers of VERDICTS."""
    defaults: Object = {
        "color": {"mode": "thresholds"},
        "custom": {"fillOpacity": 85, "lineWidth": 0, "spanNulls": False},
        "mappings": _mappings(VERDICTS),
        "thresholds": _steps(((None, SKIP), (1, PASS), (2, UNKNOWN), (3, WARN), (4, FAIL))),
    }
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _panel(
        "state-timeline", title, means, height, width,
        fieldConfig={"defaults": defaults, "overrides": []}, options=options, targets=_targets([query], instant=False),
    )  # fmt: skip


def table(
    title: str,
    queries: Sequence[Query],
    means: str,
    *,
    columns: Mapping[str, Column],
    sort: str,
    descending: bool = True,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Rows are what the queries' results have the same labels for. columns: those shown, in their order: labels, and
    the queries' ``column``. sort: one of them."""
    several = len(queries) > 1
    values = {
        f"Value #{chr(ord('A') + number)}" if several else "Value": query.column for number, query in enumerate(queries)
    }
    places = {name: number for number, name in enumerate(columns)}
    by_source = {values.get(source, source): source for source in (*values, *columns) if source in values}
    order = {by_source.get(name, name): number for name, number in places.items()}
    organize = {
        "excludeByName": {"Time": True, "__name__": True},
        "indexByName": order,
        "renameByName": {source: name for source, name in values.items() if name},
    }
    transformations: list[Object] = [{"id": "merge", "options": {}}] if several else []
    transformations.append({"id": "organize", "options": organize})
    overrides = [
        {"matcher": {"id": "byName", "options": name}, "properties": properties}
        for name, column in columns.items()
        if (properties := _column(column))
    ]
    defaults: Object = {
        "unit": "short",
        "color": {"mode": "thresholds"},
        "thresholds": _steps(((None, PLAIN),)),
        "custom": {"align": "auto", "displayMode": "auto", "filterable": False},
        "noValue": "",
    }
    options = {"showHeader": True, "sortBy": [{"displayName": sort, "desc": descending}], "footer": {"show": False}}
    return _panel(
        "table", title, means, height, width,
        fieldConfig={"defaults": defaults, "overrides": overrides}, options=options,
        targets=_targets(queries, instant=True, table=True), transformations=transformations,
    )  # fmt: skip


def _column(column: Column) -> list[Object]:
    found: list[Object] = []
    if column.unit:
        found.append({"id": "unit", "value": column.unit})
    if column.decimals is not None:
        found.append({"id": "decimals", "value": column.decimals})
    if column.width:
        found.append({"id": "custom.width", "value": column.width})
    if column.steps:
        found.append({"id": "thresholds", "value": _steps(column.steps)})
    if column.words:
        options = {word: {"color": colour, "index": index} for index, (word, colour) in enumerate(COLOURS.items())}
        found.append({"id": "mappings", "value": [{"type": "value", "options": options}]})
    if column.steps or column.words:
        found.append({"id": "custom.displayMode", "value": "color-text"})
    if column.to_node:
        found.append({"id": "links", "value": [NODE_LINK]})
    return found


NODE_LINK = {
    "title": "${__value.text}: all that its agent says",
    "url": "/d/muster-node/muster-node?var-node=${__value.text}&var-datasource=${datasource}&${__url_time_range}",
    "targetBlank": False,
}


def variable(name: str, metric: str, *, label: str = "", several: bool = True, means: str = "") -> Object:
    """Values of a label of ``metric``. All of them by default, and then also what lacks the label."""
    query = f"label_values({metric}, {label or name})"
    everything = {"includeAll": True, "allValue": ".*", "multi": True}
    return {
        "name": name,
        "label": name,
        "description": means,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"Prometheus-{name}"},
        "refresh": 2,
        "sort": 7,
        "regex": "",
        "hide": 0,
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if several else {},
        **(everything if several else {"includeAll": False, "multi": False}),
    }


SOURCE_VARIABLE: Object = {
    "name": "datasource",
    "label": "data source",
    "type": "datasource",
    "query": "prometheus",
    "regex": "",
    "refresh": 1,
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
    "current": {},
}


def assemble(
    uid: str, title: str, means: str, rows: Iterable[Row], variables: Sequence[Object], *, since: str = "now-6h"
) -> Object:
    """The whole dashboard."""
    panels: list[Object] = []
    top = 0
    for row in rows:
        if isinstance(row, str):
            place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
            panels.append({"type": "row", "title": row, "collapsed": False, "gridPos": place, "panels": []})
            top += 1
            continue
        left = 0
        for panel in row:
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            panels.append({"title": panel.title, "gridPos": place, **panel.body})
            left += panel.width
        if left != COLUMNS:
            raise ValueError(f"{title}: the row of {row[0].title!r} is {left} columns wide, expected {COLUMNS}")
        top += max(panel.height for panel in row)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    links = {
        "title": "Muster", "type": "dashboards", "tags": [TAG], "asDropdown": False, "icon": "external link",
        "includeVars": False, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
    }  # fmt: skip
    return {
        "uid": uid,
        "title": title,
        "description": means,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "id": None,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": since, "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "annotations": {"list": []},
        "links": [links],
        "templating": {"list": [SOURCE_VARIABLE, *variables]},
        "panels": panels,
    }

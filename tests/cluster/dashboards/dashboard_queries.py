"""The queries of the dashboards in grafana/, with Grafana's variables filled in."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).parents[3] / "grafana"
FALLBACK = " or vector(0)"

Object = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One query of a panel. instant: it is asked at one time, not over time."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool

    @property
    def place(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.ref}"


def dashboards() -> dict[str, Object]:
    """By uid."""
    loaded = [json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))]
    return {each["uid"]: each for each in loaded}


def targets() -> Iterator[Target]:
    for uid, board in dashboards().items():
        for panel in board["panels"]:
            for each in panel.get("targets", []):
                yield Target(uid, panel["title"], each["refId"], each["expr"], each["instant"])


def filled_in(expr: str, *, node: str, rate: str = "10s", over: str = "10m") -> str:
    """``expr`` as Grafana sends it: everything chosen, but one node where only one can be."""
    values = {"__rate_interval": rate, "__range": over}
    expr = expr.replace('node="$node"', f'node="{node}"')
    expr = re.sub(r"\$(namespace|node|check|pool)\b", ".*", expr)
    return re.sub(r"\$(__rate_interval|__range)\b", lambda match: values[match[1]], expr)


def without_fallback(expr: str) -> str:
    """A query that shows 0 where there is nothing would hide that its metric does not exist."""
    return expr.removesuffix(FALLBACK)


def label_values(variable: Object, node: str) -> tuple[str, str]:
    """What a variable's choices come from: a query, and the label of its result."""
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert match, variable["query"]
    return filled_in(match[1], node=node), match[2]

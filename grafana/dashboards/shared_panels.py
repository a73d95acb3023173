"""Panels that several dashboards share."""

import re
from collections.abc import Mapping

from dashboards.colours import FAIL, PASS, WITHHELD, from_1
from dashboards.model import Column, Panel, Query, graph, rises, stat, table

LABEL = re.compile(r"\{\{(\w+)\}\}")


def events(
    title: str,
    scope: str,
    counters: Mapping[str, str],
    means: str,
    *,
    width: int,
    colours: Mapping[str, str] | None = None,
) -> Panel:
    """Events over time as bars. counters: by legend, whose {{labels}} split a counter."""
    queries = [
        Query(rises(metric, scope, ", ".join(LABEL.findall(legend))), legend) for legend, metric in counters.items()
    ]
    return graph(title, queries, means, colours=colours, bars=True, width=width)


def worst_first(
    title: str, query: Query, means: str, *, columns: Mapping[str, Column], width: int = 12, height: int
) -> Panel:
    """A table of verdicts, FAIL first. columns: after the verdict."""
    columns = {"verdict": Column(words=True, width=90), **columns}
    return table(title, [query], means, columns=columns, sort="verdict", descending=False, width=width, height=height)


def lowest(
    title: str,
    metric: str,
    means: str,
    *,
    called: str,
    value: Column,
    between: Mapping[str, Column] | None = None,
    width: int = 8,
    height: int = 8,
) -> Panel:
    """A table of the 20 components with the lowest ``metric``, lowest first. between: columns after the node."""
    columns = {"node": Column(to_node=True), **(between or {}), "component": Column(), called: value}
    query = Query(f"bottomk(20, {metric})", column=called)
    return table(title, [query], means, columns=columns, sort=called, descending=False, width=width, height=height)


def new_taints(scope: str, means: str) -> Panel:
    query = Query(f"max(muster_tainter_paused{{{scope}}})")
    return stat("New taints", query, means, values={0: ("allowed", PASS), 1: ("PAUSED", WITHHELD)})


def withheld(scope: str, means: str) -> Panel:
    query = Query(f"sum(max by (why) (muster_tainter_nodes_withheld{{{scope}}}))")
    return stat("Withheld", query, means, steps=from_1(WITHHELD))


def budgets(scope: str, means: str) -> Panel:
    queries = [
        Query(f"{how} by (pool, domain, budget) (muster_tainter_budget_{what}{{{scope}}})", column=what)
        for what, how in (("used", "max"), ("limit", "max"), ("left", "min"))
    ]
    columns = {
        "pool": Column(),
        "domain": Column(),
        "budget": Column(),
        "used": Column(width=70),
        "limit": Column(width=70),
        "left": Column(width=70, steps=((None, FAIL), (1, WITHHELD), (2, PASS))),
    }
    return table("Budgets", queries, means, columns=columns, sort="left", descending=False, width=8)

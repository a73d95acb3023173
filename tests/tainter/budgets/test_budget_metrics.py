"""What Prometheus is told of budgets, of what is withheld and of incidents."""

from typing import Any

import msgspec
from prometheus_client import generate_latest

from muster_kube.api.objects import Node
from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

NOW = 1_800_000_000.0
POLICY = parse_policy("{rules: [{name: hw, action: taint}]}")


def text(metrics: TainterMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def withheld(make: Any, why: str) -> Node:
    decision = decide(make.node(), make.health(make.finding()), POLICY, NOW, {}, DecisionContext(withhold=why))
    node: Node = decision.applied(make.node())
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=(decision.condition,)))


def test_nodes_that_are_withheld_are_counted_by_what_holds_them_back(make: Any) -> None:
    nodes = [
        withheld(make, "budget: pool all has 2 of 2 nodes tainted"),
        withheld(make, "paused by ada"),
        withheld(make, "paused by ada"),
        decide(make.node(), make.health(make.finding()), POLICY, NOW).applied(make.node()),
    ]
    metrics = TainterMetrics()
    metrics.watch_store(lambda: nodes, dict)
    told = text(metrics)
    assert 'muster_tainter_nodes_withheld{why="budget"} 1.0' in told
    assert 'muster_tainter_nodes_withheld{why="paused"} 2.0' in told


def test_while_nothing_is_withheld_the_series_stand_at_zero() -> None:
    metrics = TainterMetrics()
    metrics.watch_store(list, dict)
    assert 'muster_tainter_nodes_withheld{why="budget"} 0.0' in text(metrics)


def test_a_budget_says_what_is_used_allowed_and_left() -> None:
    rows = [BudgetUsage("h100", "", "tainted", 3, 8, 5, 0), BudgetUsage("h100", "", "perDomain", 0, None, None, 0)]
    metrics = TainterMetrics()
    metrics.watch_budgets(lambda: rows, list)
    told = text(metrics)
    for what, value in (("used", 3.0), ("limit", 8.0), ("left", 5.0)):
        assert f'muster_tainter_budget_{what}{{budget="tainted",domain="",pool="h100"}} {value}' in told
    assert 'muster_tainter_budget_limit{budget="perDomain"' not in told


def test_of_a_thousand_domains_only_those_that_are_full_have_series() -> None:
    rows = [BudgetUsage("p", f"rack-{n}", "perDomain", int(n < 3), 1, 1 - int(n < 3), 0) for n in range(1000)]
    metrics = TainterMetrics()
    metrics.watch_budgets(lambda: rows, list)
    assert text(metrics).count("muster_tainter_budget_used{") == 3


def test_incidents_are_counted_by_check() -> None:
    made = [Incident(f"nic/LinkDown@{n}", "nic", "LinkDown", ("rack", "a"), NOW, 5) for n in range(2)]
    metrics = TainterMetrics()
    metrics.watch_budgets(list, lambda: made)
    assert 'muster_tainter_incidents{check="nic"} 2.0' in text(metrics)

"""The wording of the messages of `muster`, each asserted once. Other tests assert facts only."""

import pytest
from tests.cli.commands.test_status import health, node, one
from tests.cli.doctor.test_node_findings import daemon, judge
from tests.cli.doctor.test_node_findings import node as bare_node

from muster_checks.registry import load_registry
from muster_cli.report.fleet.rows import NodeRow, node_rows, select_rows, summary
from muster_cli.report.policies.warnings import find_warnings
from muster_tainter.policy.file import parse_policy


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (one(node("a"), health("a", "")), "its agent has not reported yet"),
        (
            one(node("a", health="unknown"), health("a")),
            "its agent is not trusted (muster.dev/health=unknown); last report: PASS",
        ),
        (one(node("a"), None), "not watched: it has no NodeHealth"),
        (one(None, health("a")), "the Node does not exist"),
    ],
)
def test_message_of_a_node_without_a_trusted_verdict(row: NodeRow, message: str) -> None:
    assert row.message == message


def test_the_last_lines_of_status() -> None:
    names = [f"n{number}" for number in range(30)]
    rows = node_rows([node(name) for name in [*names, "alone"]], {name: health(name) for name in names}, 1.8e9)
    _, hidden = select_rows(rows, every=False)
    assert hidden == "30 healthy nodes are not shown (--all shows them)"
    assert summary(rows) == "30 nodes: 30 PASS; 1 not watched"


def test_a_rule_that_never_matches() -> None:
    rules = "rules: [{name: a, match: {}, action: taint}, {name: b, match: {check: dmesg}, action: taint}]"
    assert list(find_warnings(parse_policy(rules), load_registry())) == [
        "rules[1] (b): never matches: earlier rules (a) match all of its findings"
    ]


def test_a_node_that_the_agents_selector_leaves_out() -> None:
    (unlabelled,) = judge([bare_node("a")], [], [], daemon=daemon(nodeSelector={"gpu": "yes"}))
    assert unlabelled.what == "1 node (a): no agent: agent.nodeSelector requires gpu=yes"

"""The wording of what `muster` says, each message once. Other tests hold only the facts."""

import pytest
from tests.cli.commands.test_status import health, node, one
from tests.cli.doctor.test_node_findings import daemon, judge
from tests.cli.doctor.test_node_findings import node as bare_node

from muster_checks.registry import load_registry
from muster_cli.report.fleet_rows import NodeRow, node_rows, select_rows, summary
from muster_cli.report.policy_warnings import find_warnings
from muster_tainter.policy.file import parse_policy


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (one(node("a"), health("a", "")), "no word from its agent yet"),
        (
            one(node("a", health="unknown"), health("a")),
            "not believed: its last word was PASS, muster.dev/health=unknown",
        ),
        (one(node("a"), None), "not watched: no NodeHealth"),
        (one(None, health("a")), "no such Node"),
    ],
)
def test_what_is_said_of_a_node_without_a_believable_verdict(row: NodeRow, message: str) -> None:
    assert row.message == message


def test_the_last_lines_of_status() -> None:
    names = [f"n{number}" for number in range(30)]
    rows = node_rows([node(name) for name in [*names, "alone"]], {name: health(name) for name in names}, 1.8e9)
    _, said = select_rows(rows, every=False)
    assert said == "30 nodes are fine (--all shows them)"
    assert summary(rows) == "30 nodes: 30 PASS; 1 not watched"


def test_a_rule_that_never_matches() -> None:
    rules = "rules: [{name: a, match: {}, action: taint}, {name: b, match: {check: dmesg}, action: taint}]"
    assert list(find_warnings(parse_policy(rules), load_registry())) == [
        "rules[1] (b): never matches: a before it take all that it is for"
    ]


def test_a_node_that_the_agents_selector_leaves_out() -> None:
    (unlabelled,) = judge([bare_node("a")], [], [], daemon=daemon(nodeSelector={"gpu": "yes"}))
    assert unlabelled.what == "1 node (a): no agent: agent.nodeSelector wants gpu=yes"

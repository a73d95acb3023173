"""A record that a kubelet has written: which taints the tainter then removes, and which it leaves."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Node, Taint
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.record.node_record import ANNOTATION, NodeRecord, as_our_taint, encode_record
from muster_tainter.policy.file import LivePolicy, PolicyError, load_policy, parse_policy

NOW = 1_800_000_000.0
BUILT_IN = load_policy(None)
ONE = Taint(key="example.com/faulty", value="true", effect="NoSchedule")
TWO = Taint(key="example.org/faulty", value="true", effect="NoSchedule")
POLICY = "{{rules: [{{name: all, action: taint, taint: {{key: {}}}}}]{}}}"
OF_ONE = parse_policy(POLICY.format(ONE.key, ""))
OF_TWO = parse_policy(POLICY.format(TWO.key, ""))
DEDICATED = Taint(key="dedicated", value="research", effect="NoExecute")
THEIRS = (Taint(key="node-role.kubernetes.io/control-plane", effect="NoSchedule"), DEDICATED)


def claim(*taints: Taint) -> dict[str, str]:
    text = encode_record(NodeRecord(ours=tuple(map(as_our_taint, taints))))
    assert text is not None
    return {ANNOTATION: text}


def reasons(decision: Decision) -> list[str]:
    return [notice.reason for notice in decision.notices]


@pytest.mark.parametrize("labels", [{}, {"muster.dev/managed": "false"}])
def test_taints_that_no_rule_sets_stay_and_the_claim_goes(make: Any, labels: dict[str, str]) -> None:
    node = make.node(*THEIRS, make.faulty, labels=labels, **claim(*THEIRS, make.faulty))
    decision = decide(node, make.health(), BUILT_IN, NOW)
    after = decision.applied(node)
    assert after.spec.taints == THEIRS
    assert ANNOTATION not in after.metadata.annotations
    [notice] = [notice for notice in decision.notices if notice.reason == "TaintNotInPolicy"]
    assert all(taint.key in notice.message for taint in THEIRS)
    assert "TaintNotInPolicy" not in reasons(decide(after, make.health(), BUILT_IN, NOW))


@pytest.mark.parametrize("field", ["key", "value", "effect"])
def test_key_value_and_effect_have_to_be_those_of_a_rule(make: Any, field: str) -> None:
    other = {"key": "example.com/faulty2", "value": "research", "effect": "NoExecute"}[field]
    near = msgspec.structs.replace(ONE, **{field: other})
    decided = decide(make.node(near, ONE, **claim(near, ONE)), make.health(), OF_ONE, NOW)
    assert decided.taints == (near,)


def test_a_claim_of_a_foreign_taint_takes_no_place_of_a_budget_unseen(make: Any) -> None:
    """The first taint of a node counts against its budget, also where the annotation claims that there is one."""
    decision = decide(make.node(*THEIRS, **claim(*THEIRS)), make.health(make.finding()), BUILT_IN, NOW)
    assert decision.takes_a_place


def tainted(make: Any) -> Node:
    node: Node = make.node()
    return decide(node, make.health(make.finding()), OF_ONE, NOW).applied(node)


def test_the_taint_of_a_rule_that_is_gone_stays_after_a_restart_and_comes_off_once_it_is_listed(make: Any) -> None:
    node = tainted(make)
    assert node.spec.taints == (ONE,)
    decision = decide(node, make.health(make.finding()), OF_TWO, NOW)
    node = decision.applied(node)
    assert (node.spec.taints, "TaintNotInPolicy" in reasons(decision)) == ((ONE, TWO), True)
    listed = parse_policy(POLICY.format(TWO.key, f", formerTaints: [{{key: {ONE.key}}}]"))
    node = decide(node, make.health(make.finding()), listed, NOW).applied(node)
    assert node.spec.taints == (TWO,)
    assert recall_record(node).ours == (as_our_taint(TWO),)


def test_a_running_tainter_moves_the_taint_when_its_policy_is_edited(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(ONE.key, ""))
    live, node = LivePolicy(file), tainted(make)
    file.write_text(POLICY.format(TWO.key, ""))
    assert live.reload()
    same = live.current
    assert not live.reload()
    assert live.current is same
    assert decide(node, make.health(make.finding()), live.current, NOW).taints == (TWO,)
    file.write_text(POLICY.format("example.net/faulty", ""))
    assert live.reload()
    later = decide(node, make.health(make.finding()), live.current, NOW).applied(node)
    assert [taint.key for taint in later.spec.taints] == ["example.net/faulty"], "after two edits, too"


def test_a_former_taint_that_a_rule_sets_is_a_mistake() -> None:
    with pytest.raises(PolicyError, match=r"formerTaints\[0\]\.key"):
        parse_policy(POLICY.format(ONE.key, f", formerTaints: [{{key: {ONE.key}}}]"))

"""Corners where faults, taints and memory meet: many faults at once, memory that was lost, other sources, a new Node of
an old name."""

from typing import Any, cast

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata, Node, OwnerReference, Taint
from muster_kube.nodehealth import ClearedFault, ClearEntry, NodeHealth, ReportedFinding
from muster_tainter.controller import Tainter
from muster_tainter.faults.decision_context import EMPTY_CONTEXT, DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.record.node_record import ANNOTATION, decode_record
from muster_tainter.fleet.projection import slim_health, slim_node
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import load_policy, parse_policy
from muster_tainter.policy.rules import SILENT, Policy

NOW = 1_800_000_000.0
POLICY = load_policy(None)
SILENCE = ReportedFinding(
    component=SILENT[1], reason=SILENT[2], verdict="FAIL", message="no agent is ready", occurrence=1_700_000_000
)


def settle(
    node: Node,
    health: NodeHealth | None,
    policy: Policy = POLICY,
    now: float = NOW,
    around: DecisionContext = EMPTY_CONTEXT,
) -> tuple[Node, Decision]:
    """The Node after one decision; a second one must find nothing to do, and its memory must be readable."""
    decision = decide(node, health, policy, now, {}, around)
    after = decision.applied(node)
    decode_record(after.metadata.annotations.get(ANNOTATION))
    again = decide(after, health, policy, now + 1, {}, around)
    assert not again.writes, again
    assert again.condition == decision.condition
    return after, decision


def many(make: Any, count: int, **fields: Any) -> tuple[ReportedFinding, ...]:
    return tuple(make.finding(component=f"gpu/{i}", occurrence=i + 1, **fields) for i in range(count))


def test_lost_memory_beside_forty_failures_keeps_the_taint_it_cannot_explain(make: Any) -> None:
    other = Taint(key="muster.dev/other", value="x", effect="NoExecute")
    node = make.node(other, **{ANNOTATION: "not json"})
    after, decision = settle(node, make.health(*many(make, 45)))
    assert other in after.spec.taints
    assert all(taint.key for taint in after.spec.taints)
    assert decision.memory.ours


def test_an_agent_that_comes_back_ends_its_silence_also_beside_forty_failures(make: Any) -> None:
    health = make.health(*many(make, 45))
    node, _ = settle(make.node(), health)
    node, _ = settle(node, health, around=DecisionContext(external={SILENT: SILENCE}))
    over = ClearedFault(component=SILENT[1], reason=SILENT[2], occurrence=SILENCE.occurrence, how="source", at="")
    node, _ = settle(node, health, around=DecisionContext(over={SILENT: (over,)}))
    node, _ = settle(node, make.health(boot="boot-2"))
    assert recall_record(node).open == ()


WAITING = parse_policy("rules: [{name: hardware, match: {class: reboot}, for: 60s, action: taint}]")


def test_what_is_only_counted_waits_for_its_turn_like_the_others(make: Any) -> None:
    health = make.health(*many(make, 45))
    node, _ = settle(make.node(), health, WAITING)
    node, _ = settle(node, health, WAITING, NOW + 30)
    node, _ = settle(node, health, WAITING, NOW + 61)
    assert sum(fault.rest or 1 for fault in recall_record(node).open) == 45


MIXED = parse_policy(
    "rules: [{name: ipu, match: {component: 'ipu/*'}, action: quarantine}, {name: hardware, action: taint}]"
)


def test_a_node_is_tainted_for_a_fault_that_comes_after_forty_of_its_ipus(make: Any) -> None:
    ipus = tuple(make.finding(component=f"ipu/{i}", occurrence=i + 1) for i in range(45))
    host = make.finding(component="host", occurrence=100)
    node, _ = settle(make.node(), make.health(*ipus), MIXED)
    node, _ = settle(node, make.health(*ipus, host), MIXED)
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(*ipus, make.finding(component="host", occurrence=101)), MIXED)
    assert node.spec.taints == (make.faulty,)


LOKI = parse_policy("rules: [{name: hardware, action: taint, closeOn: [proof], proof: {checks: [dcgm]}}]")


def test_what_a_log_service_still_tells_of_an_earlier_boot_was_not_seen_in_this_one(make: Any) -> None:
    finding = make.finding(fault_class="replace")
    around = DecisionContext(external={("loki", finding.component, finding.reason): finding})
    node, _ = settle(make.node(), make.health(), LOKI, around=around)
    assert recall_record(node).open[0].boot == "boot-1"
    node, _ = settle(node, make.health(boot="boot-2"), LOKI, around=around)
    assert recall_record(node).open[0].boot == "boot-1"


def test_a_person_clears_one_loss_of_memory_not_those_to_come(make: Any) -> None:
    node = make.node(make.faulty, **{ANNOTATION: "not json"})
    node, _ = settle(node, make.health())
    [lost] = recall_record(node).open
    clear = ClearEntry(check=lost.check, component=lost.component, occurrence=lost.occurrence, by="ada")
    node, _ = settle(node, make.health(clear=(clear,)), now=NOW + 10)
    assert node.spec.taints == ()
    again = make.node(make.faulty, **{ANNOTATION: "not json"})
    again, _ = settle(again, make.health(clear=(clear,)), now=NOW + 3600)
    assert again.spec.taints == (make.faulty,)


def test_another_key_in_the_policy_while_paused_gives_no_node_back(make: Any) -> None:
    first = parse_policy("rules: [{name: hardware, match: {class: reboot}, action: taint}]")
    other = parse_policy(
        "rules: [{name: hardware, match: {class: reboot}, action: taint, taint: {key: example.com/bad}}]"
    )
    paused = DecisionContext(withhold="paused by ada")
    node, _ = settle(make.node(), make.health(make.finding()), first)
    node, _ = settle(node, make.health(make.finding()), other, around=paused)
    assert node.spec.taints != ()
    node, _ = settle(node, make.health(make.finding()), other)
    assert [taint.key for taint in node.spec.taints] == ["example.com/bad"]


def test_a_condition_that_a_person_closed_stays_closed_while_its_source_is_not_heard(make: Any) -> None:
    policy = parse_policy("rules: [{name: all, action: taint, holdDown: 0s}]")
    finding = make.finding(component="host", reason="Kaputt", occurrence=1_700_000_000, fault_class="")
    key = ("condition", "host", "Kaputt")
    around = DecisionContext(external={key: finding})
    node, _ = settle(make.node(), make.health(), policy, around=around)
    clear = ClearEntry(check="condition", component="host", occurrence=finding.occurrence, by="ada")
    node, _ = settle(node, make.health(clear=(clear,)), policy, around=around)
    assert node.spec.taints == ()
    later = NOW + 2 * 86_400  # the entry of spec.clear has gone, a new leader has not read the conditions yet
    node, _ = settle(node, make.health(make.finding()), policy, later)
    node, _ = settle(node, make.health(cleared=(make.cleared(),)), policy, later + 10)
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(), policy, later + 20, around=around)
    assert node.spec.taints == ()


def owned(name: str, uid: str) -> NodeHealth:
    owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=uid)
    return NodeHealth(metadata=Metadata(name=name, resource_version="1", owner_references=(owner,)))


@pytest.mark.parametrize(("uid", "believed"), [("first", False), ("second", True)])
def test_what_was_said_of_an_older_node_is_not_believed_of_another_of_that_name(uid: str, believed: bool) -> None:
    class NoCluster:
        """Nobody asks it."""

    tainter = Tainter(
        Connections.shared(cast("KubeClient", NoCluster())),
        lambda: POLICY,
        Replica(may_write=lambda: False),
        TainterMetrics(),
    )
    nodes, healths = tainter.fleet.node_watch._objects, tainter.fleet.health_watch._objects
    nodes["n1"] = slim_node(Node(metadata=Metadata(name="n1", uid="second", resource_version="2")))
    healths["n1"] = slim_health(owned("n1", uid))
    assert (tainter.fleet.health_of("n1") is not None) is believed
    healths["n1"] = slim_health(NodeHealth(metadata=Metadata(name="n1", resource_version="3")))
    assert tainter.fleet.health_of("n1") is not None  # nobody owns it: whoever made it means any node of that name

"""Why a node is tainted, or is not, as people read it."""

import json
from typing import Any

import msgspec

from muster_kube.api.objects import Node, Taint
from muster_kube.nodehealth import (
    CheckRequest,
    ClearEntry,
    NodeHealthSpec,
    ReportedCheck,
    ReportedMeasurement,
    RequestAnswer,
)
from muster_tainter.explain.explanation import FaultChain, NodeExplanation, format_explanation
from muster_tainter.explain.node import explain_node
from muster_tainter.faults.decision_context import AssignedRole, DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.policy.file import load_policy
from muster_tainter.policy.recovery import MANAGER, ProofRequest
from muster_tainter.policy.rules import STARTUP_KEY
from muster_tainter.policy.spares import SpareRole

NOW = 1_800_000_000.0
POLICY = load_policy(None)


def link(chain: FaultChain, label: str) -> str:
    """The texts of its links of that label, one a line."""
    return "\n".join(each.text for each in chain.links if each.label == label)


class TestExplain:
    """Chains for people."""

    def text(self, node: Node, health: Any, policy: Any = POLICY, now: float = NOW, paused: str = "") -> str:
        return "\n".join(format_explanation(explain_node(node, health, policy, now, paused=paused)))

    def one(
        self, node: Node, health: Any, policy: Any = POLICY, now: float = NOW
    ) -> tuple[NodeExplanation, FaultChain]:
        """The node, and its only open fault."""
        explained = explain_node(node, health, policy, now)
        [chain] = explained.chains
        return explained, chain

    def test_the_first_line_says_state_and_reason(self, make: Any) -> None:
        finding = make.finding()
        node = decide(make.node(), make.health(finding), POLICY, NOW).applied(make.node())
        first = self.text(node, make.health(finding)).splitlines()[0]
        assert first.startswith("n1 TAINTED  ")
        for fact in ("0s", "reboot", "dmesg gpu/0000:3b:00.0 Xid79", finding.message):
            assert fact in first
        free = self.text(make.node(), make.health()).splitlines()[0]
        assert free.startswith("n1 FREE  ")
        assert free.endswith("PASS")

    def test_a_tainted_node_shows_the_chain_of_evidence(self, make: Any) -> None:
        measured = ReportedMeasurement(name="bandwidth", value=3.2, unit="GB/s", threshold=4.0)
        health = make.health(make.finding(count=3, origin="kernel", measurements=(measured,)))
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        _, chain = self.one(node, health, now=NOW + 7980)
        facts = {
            "saw": (make.finding().message, "kernel", "3"),
            "measured": ("bandwidth 3.2 GB/s", "4 GB/s"),
            "rule": ("hardware", "FAIL", "reboot", "muster.dev/faulty=true:NoSchedule"),
            "since": ("2h 13m", "2027-01-15T08:00:00Z", "boot-1"),
            "ends by": ("reboot", "driver", "muster clear n1 dmesg"),
        }
        assert [each.label for each in chain.links] == list(facts)
        for label, expected in facts.items():
            assert [fact for fact in expected if fact not in link(chain, label)] == []

    def test_what_a_budget_or_a_pause_withholds_is_said_with_its_reason(self, make: Any) -> None:
        health = make.health(make.finding())
        why = "paused by ada: switches"
        decision = decide(make.node(), health, POLICY, NOW, context=DecisionContext(withhold=why))
        node = decision.applied(make.node())
        status = msgspec.structs.replace(node.status, conditions=(decision.condition,))
        node = msgspec.structs.replace(node, status=status)
        explained, chain = self.one(node, health)
        assert (explained.state, chain.state) == ("WITHHELD", "withheld")
        assert link(chain, "withheld") == why
        assert why in explained.why
        text = self.text(node, health, paused=why)
        assert text.startswith("PAUSED by ada: switches")
        assert "n1 WITHHELD  " in text
        assert ".;" not in explained.why

    def test_a_new_node_names_both_things_it_waits_for(self, make: Any) -> None:
        explained = explain_node(make.node(Taint(key=STARTUP_KEY, effect="NoSchedule")), None, POLICY, NOW)
        assert explained.state == "TAINTED"
        assert not [word for word in ("full pass", "preFlight") if word not in explained.why]

    def test_a_spare_and_a_replacement_are_named_as_such(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: []\npools: [{name: a, selector: {}, spares: {nodes: 2, checks: [pciebw]}}]")
        context = DecisionContext(spare=AssignedRole(SpareRole.SPARE, ""))
        node = decide(make.node(), make.health(), policy, NOW, context=context).applied(make.node())
        explained = explain_node(node, make.health(), policy, NOW)
        assert (explained.state, explained.others) == ("SPARE", ())
        assert explained.taints == ("muster.dev/spare=true:NoSchedule",)
        assert explained.role is not None
        assert (explained.role.since, explained.role.ready) == ("2027-01-15T08:00:00Z", False)
        text = self.text(node, make.health(), policy)
        for fact in (*explained.role.why, "2027-01-15T08:00:00Z"):
            assert fact in text
        context = DecisionContext(spare=AssignedRole(SpareRole.REPLACEMENT, "", replaces="n7"))
        node = decide(node, make.health(), policy, NOW, context=context).applied(node)
        explained = explain_node(node, make.health(), policy, NOW)
        assert explained.state == "FREE"
        assert "n7" in self.text(node, make.health(), policy)
        assert json.loads(msgspec.json.encode(explained))["role"]["replaces"] == "n7"

    def test_a_fault_that_waits_or_is_held_says_until_when(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: [{name: hw, match: {}, action: taint, for: 30s}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        _, waits = self.one(node, health, policy, NOW + 1)
        assert waits.state == "waiting"
        assert "30 s" in link(waits, "waits")
        assert "2027-01-15T08:00:30Z" in link(waits, "waits")
        at = NOW
        for number in (1, 2):
            health = make.health(make.finding(occurrence=number))
            node = decide(node, health, policy, at).applied(node)
            node = decide(node, health, policy, at + 60).applied(node)
            health = make.health(cleared=(make.cleared(occurrence=number),))
            node = decide(node, health, policy, at + 120).applied(node)
            at += 1000
        explained, chain = self.one(node, health, policy, NOW + 1130)
        assert (explained.state, chain.state) == ("TAINTED", "held")
        assert "2m" in explained.why
        assert "reboot" not in explained.why, "nothing is asked of anybody"
        assert not link(chain, "ends by")
        for fact in ("10s", "2027-01-15T08:18:40Z", "driver"):
            assert fact in link(chain, "held")
        assert "HELD  dmesg" in self.text(node, health, policy, NOW + 1130)
        bare = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=()))
        without, held = self.one(bare, health, policy, NOW + 1130)
        assert (without.state, held.state) == ("HELD", "held")
        assert link(held, "held") != link(chain, "held"), "no taint stays where none is"

    def test_a_proof_that_is_asked_for_says_how_far_it_is(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: [{name: hw, match: {}, action: taint, proof: {checks: [dcgm]}}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        proof = policy.rules[0].proof_of("dmesg", "reboot")
        request = CheckRequest(id=ProofRequest(proof.digest, NOW + 60).id, checks=("dcgm",), by=MANAGER)
        answers = (RequestAnswer(id=request.id, verdict="PASS", runs=3, passes=1),)
        health = msgspec.structs.replace(
            health,
            spec=NodeHealthSpec(requests=(request,)),
            status=msgspec.structs.replace(health.status, answers=answers),
        )
        _, chain = self.one(node, health, policy, NOW + 120)
        asked = link(chain, "proof").splitlines()[-1]
        for fact in ("dcgm", "60s", "1 of 3"):
            assert fact in asked
        for fact in ("dcgm", " 3 ", "reboot"):
            assert fact in link(chain, "ends by")

    def test_a_proof_says_which_of_its_checks_its_node_lacks(self, make: Any, policy_of: Any) -> None:
        proof = "{checks: [pciebw], ifInstalled: [dcgm]}"
        policy = policy_of(f"rules: [{{name: hw, match: {{}}, action: taint, proof: {proof}}}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        _, chain = self.one(node, health, policy, NOW + 120)
        assert "dcgm (" in link(chain, "ends by")
        assert "ToolMissing" not in link(chain, "proof")
        dcgm = ReportedCheck(name="dcgm", verdict="UNKNOWN", reason="ToolMissing", message="dcgmi: not found")
        status = msgspec.structs.replace(health.status, checks=(*health.status.checks, dcgm))
        _, chain = self.one(node, msgspec.structs.replace(health, status=status), policy, NOW + 120)
        for fact in ("dcgm", "ToolMissing", "dcgmi"):
            assert fact in link(chain, "proof").splitlines()[0]

    def test_a_closed_fault_tells_who_closed_it_when_and_by_which_rule_it_was_one(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        clear = ClearEntry(check="dmesg", component="*", occurrence=1, by="ada")
        health = make.health(make.finding(), clear=(clear,))
        node = decide(node, health, POLICY, NOW + 300).applied(node)
        [closed] = explain_node(node, health, POLICY, NOW + 360).closed
        assert (link(closed, "who"), link(closed, "rule")) == ("ada (person)", "hardware")
        for fact in ("60s", "2027-01-15T08:05:00Z", "5m"):
            assert fact in link(closed, "closed")
        explained = explain_node(node, health, POLICY, NOW + 360)
        assert (explained.state, explained.chains) == ("FREE", ())
        [still_reported] = explained.findings
        for fact in ("60s", "2027-01-15T08:05:00Z", "ada (person)"):
            assert fact in link(still_reported, "rule")

    def test_a_finding_that_only_is_said_names_its_rule(self, make: Any) -> None:
        health = make.health(make.finding("Xid31", verdict="WARN", fault_class="restart-app"))
        [finding] = explain_node(make.node(), health, POLICY, NOW).findings
        assert (finding.fault, finding.state) == ("dmesg gpu/0000:3b:00.0 Xid31", "WARN")
        assert link(finding, "rule") == "warnings: event"

    def test_what_is_missing_is_said(self, make: Any) -> None:
        assert "NodeHealth" in explain_node(make.node(), None, POLICY, NOW).why
        others = explain_node(make.node(labels={"muster.dev/managed": "false"}), None, POLICY, NOW)
        assert others.state == "UNMANAGED"
        assert "muster.dev/managed=false" in others.why
        [unreadable, _] = explain_node(make.node(**{"muster.dev/faults": "{"}), make.health(), POLICY, NOW).notes
        assert "muster.dev/faults" in unreadable
        assert "occurrence" in explain_node(make.node(), make.health(make.finding(occurrence=0)), POLICY, NOW).why

    def test_every_word_is_in_the_json_too(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        document = json.loads(msgspec.json.encode(explain_node(node, health, POLICY, NOW)))
        assert (document["state"], document["chains"][0]["state"]) == ("TAINTED", "tainted")
        links = dict(document["chains"][0]["links"])
        assert links["rule"].endswith("muster.dev/faulty=true:NoSchedule")

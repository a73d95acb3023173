"""Why a node is tainted, or is not, as people read it."""

import json
from typing import Any

import msgspec

from muster_kube.api.objects import Node
from muster_kube.nodehealth import (
    CheckRequest,
    ClearEntry,
    NodeHealthSpec,
    ReportedMeasurement,
    RequestAnswer,
)
from muster_tainter.explain.node import explain_node, format_explanation
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.policy.file import load_policy
from muster_tainter.policy.recovery import MANAGER, ProofRequest

NOW = 1_800_000_000.0
POLICY = load_policy(None)


class TestExplain:
    """Chains for people."""

    def text(self, node: Node, health: Any, policy: Any = POLICY, now: float = NOW, paused: str = "") -> str:
        return "\n".join(format_explanation(explain_node(node, health, policy, now, paused=paused)))

    def test_the_first_line_says_state_and_reason(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        first = self.text(node, health).splitlines()[0]
        assert first.startswith("n1 TAINTED  for 0s, needs a reboot: dmesg gpu/0000:3b:00.0 Xid79: NVRM: Xid")
        assert self.text(make.node(), make.health()).splitlines()[0] == "n1 FREE  its last report was PASS"

    def test_a_tainted_node_shows_the_chain_of_evidence(self, make: Any) -> None:
        measured = ReportedMeasurement(name="bandwidth", value=3.2, unit="GB/s", threshold=4.0)
        health = make.health(make.finding(count=3, origin="kernel", measurements=(measured,)))
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        [chain] = explain_node(node, health, POLICY, NOW + 7980).chains
        told = dict(chain.links)
        assert [link.label for link in chain.links] == ["saw", "measured", "rule", "since", "ends by"]
        assert told["saw"].endswith("fallen off the bus. [the kernel's own], 3 times")
        assert told["measured"] == "bandwidth 3.2 GB/s -> threshold 4 GB/s"
        assert told["rule"] == "hardware: FAIL of class reboot -> taint muster.dev/faulty=true:NoSchedule"
        assert told["since"].startswith("2h 13m ago (2027-01-15T08:00:00Z), occurrence 1, boot boot-1")
        assert told["ends by"].startswith("a reboot after which it is not found; or the driver's own word")
        assert told["ends by"].endswith("or a person: muster clear n1 dmesg")

    def test_what_a_budget_or_a_pause_withholds_is_said_with_its_reason(self, make: Any) -> None:
        health = make.health(make.finding())
        decision = decide(make.node(), health, POLICY, NOW, context=DecisionContext(withhold="paused by ada: switches"))
        node = decision.applied(make.node())
        status = msgspec.structs.replace(node.status, conditions=(decision.condition,))
        node = msgspec.structs.replace(node, status=status)
        text = self.text(node, health, paused="paused by ada: switches")
        assert text.startswith("PAUSED by ada: switches; nothing new is tainted")
        assert "n1 WITHHELD  for 0s, needs a reboot: dmesg" in text
        assert "withheld paused by ada: switches" in text

    def test_a_fault_that_waits_or_is_held_says_until_when(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: [{name: hw, match: {}, action: taint, for: 30s}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        assert "for 30 s, as its rule says, until 2027-01-15T08:00:30Z" in self.text(node, health, policy, NOW + 1)
        at = NOW
        for number in (1, 2):
            health = make.health(make.finding(occurrence=number))
            node = decide(node, health, policy, at).applied(node)
            node = decide(node, health, policy, at + 60).applied(node)
            health = make.health(cleared=(make.cleared(occurrence=number),))
            node = decide(node, health, policy, at + 120).applied(node)
            at += 1000
        text = self.text(node, health, policy, NOW + 1130)
        assert "n1 TAINTED  for 2m, over, held as it comes and goes: dmesg" in text, "nothing is asked of anybody"
        assert "which alone closes nothing" not in text
        assert "HELD  dmesg" in text
        assert "held     over 10s ago (2027-01-15T08:18:40Z) by driver" in text
        assert "so the taint stays until" in text
        bare = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=()))
        assert "so it stays a fault, without a taint, until" in self.text(bare, health, policy, NOW + 1130)

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
        assert "proof    dcgm, asked 60s ago: 1 of 3 passed so far" in self.text(node, health, policy, NOW + 120)
        assert "dcgm passing 3 times on request, after a reboot" in self.text(node, health, policy, NOW + 120)

    def test_a_closed_fault_tells_who_closed_it_when_and_by_which_rule_it_was_one(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        clear = ClearEntry(check="dmesg", component="*", occurrence=1, by="ada")
        health = make.health(make.finding(), clear=(clear,))
        node = decide(node, health, POLICY, NOW + 300).applied(node)
        [closed] = explain_node(node, health, POLICY, NOW + 360).closed
        told = dict(closed.links)
        assert (told["who"], told["rule"]) == ("ada (person)", "hardware")
        assert told["closed"] == "60s ago (2027-01-15T08:05:00Z), after 5m, occurrence 1"
        text = self.text(node, health, now=NOW + 360)
        assert text.startswith("n1 FREE  ")
        assert "closed 60s ago (2027-01-15T08:05:00Z) by ada (person); only a new firing counts" in text

    def test_a_finding_that_only_is_said_names_its_rule(self, make: Any) -> None:
        text = self.text(make.node(), make.health(make.finding("Xid31", verdict="WARN", fault_class="restart-app")))
        assert "dmesg gpu/0000:3b:00.0 Xid31  WARN" in text
        assert "rule     warnings: event" in text

    def test_what_is_missing_is_said(self, make: Any) -> None:
        assert "no NodeHealth" in self.text(make.node(), None)
        assert "leaves it alone" in self.text(make.node(labels={"muster.dev/managed": "false"}), None)
        assert "cannot be read" in self.text(make.node(**{"muster.dev/faults": "{"}), make.health())
        assert "makes no sense" in self.text(make.node(), make.health(make.finding(occurrence=0)))

    def test_every_word_is_in_the_json_too(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        document = json.loads(msgspec.json.encode(explain_node(node, health, POLICY, NOW)))
        assert (document["state"], document["chains"][0]["state"]) == ("TAINTED", "tainted")
        assert ["rule", "hardware: FAIL of class reboot -> taint muster.dev/faulty=true:NoSchedule"] in (
            document["chains"][0]["links"]
        )

"""A fault that waits, is withheld, is over and held, is proved: what a decision makes of each."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import (
    CheckRequest,
    ClearedFault,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
    RequestAnswer,
)
from muster_tainter.faults.decision_context import EMPTY_CONTEXT, DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.recovery import MANAGER, HoldDown, ProofRequest

NOW = 1_800_000_000.0
HOUR = 3600.0


def policy(rule: str = "", more: str = "") -> Any:
    return parse_policy(f"{{rules: [{{name: hw, action: taint{rule}}}]{more}}}")


def settled(
    node: Node, health: NodeHealth | None, rules: Any, now: float, around: DecisionContext = EMPTY_CONTEXT
) -> Node:
    """The node once everything is written."""
    for _ in range(3):
        decision = decide(node, health, rules, now, {}, around)
        if not decision.writes:
            return node
        node = decision.applied(node)
    raise AssertionError(f"three writes are not enough: {decision}")


def tainted(node: Node) -> bool:
    return any(taint.key == "muster.dev/faulty" for taint in node.spec.taints)


class TestFor:
    def test_a_fault_is_acted_upon_once_it_is_as_old_as_its_rule_says(self, make: Any) -> None:
        rules, health = policy(", for: 30s"), make.health(make.finding())
        decision = decide(make.node(), health, rules, NOW)
        node = decision.applied(make.node())
        assert (tainted(node), len(recall_record(node).open), decision.again_at) == (False, 1, NOW + 30)
        assert not tainted(settled(node, health, rules, NOW + 29))
        assert tainted(settled(node, health, rules, NOW + 30))

    def test_what_goes_before_leaves_nothing_and_is_no_flap(self, make: Any) -> None:
        rules = policy(", for: 30s")
        node = settled(make.node(), make.health(make.finding()), rules, NOW)
        node = settled(node, make.health(), rules, NOW + 10)
        memory = recall_record(node)
        assert (memory.open, [c.how for c in memory.closed], memory.penalty) == ((), ["passing"], {})

    def test_what_is_gone_from_a_report_that_could_not_measure_is_still_there(self, make: Any) -> None:
        rules = policy(", for: 30s")
        node = settled(make.node(), make.health(make.finding()), rules, NOW)
        assert recall_record(settled(node, make.health(verdict="UNKNOWN"), rules, NOW + 10)).open

    def test_a_clock_that_was_set_back_delays_nothing(self, make: Any) -> None:
        rules, health = policy(", for: 30s"), make.health(make.finding())
        node = settled(make.node(), health, rules, NOW)
        assert tainted(settled(node, health, rules, NOW - HOUR))


class TestWithheld:
    AROUND = DecisionContext(withhold="budget: pool all has 2 of 2 nodes tainted")

    def test_the_fault_is_open_and_told_and_the_node_has_no_taint(self, make: Any) -> None:
        decision = decide(make.node(), make.health(make.finding()), policy(), NOW, {}, self.AROUND)
        node = decision.applied(make.node())
        assert (tainted(node), recall_record(node).ours, "muster.dev/faulty" in node.metadata.labels) == (
            False,
            (),
            False,
        )
        assert [fault.reason for fault in recall_record(node).open] == ["Xid79"]
        assert decision.withheld == self.AROUND.withhold
        assert decision.condition is not None
        assert self.AROUND.withhold in decision.condition.message
        assert [n.reason for n in decision.notices] == ["NodeFaultOpened", "TaintWithheld"]

    def test_once_there_is_room_the_taint_comes(self, make: Any) -> None:
        health = make.health(make.finding())
        node = settled(make.node(), health, policy(), NOW, self.AROUND)
        decision = decide(node, health, policy(), NOW + 60)
        assert decision.takes_a_place
        assert tainted(decision.applied(node))

    def test_it_is_told_once(self, make: Any) -> None:
        health = make.health(make.finding())
        decision = decide(make.node(), health, policy(), NOW, {}, self.AROUND)
        node = decision.applied(make.node())
        shown = msgspec.structs.replace(
            node, status=msgspec.structs.replace(node.status, conditions=(decision.condition,))
        )
        again = decide(shown, health, policy(), NOW + 5, {}, self.AROUND)
        assert (again.writes, again.notices) == (False, ())

    def test_what_is_there_stays_and_what_others_dropped_is_put_back(self, make: Any) -> None:
        health = make.health(make.finding())
        node = settled(make.node(), health, policy(), NOW)
        assert decide(node, health, policy(), NOW, {}, self.AROUND).writes is False
        dropped = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=()))
        back = decide(dropped, health, policy(), NOW, {}, self.AROUND)
        assert (tainted(back.applied(dropped)), back.takes_a_place) == (True, False)

    def test_recovery_goes_on(self, make: Any) -> None:
        node = settled(make.node(), make.health(make.finding()), policy(), NOW)
        node = settled(node, make.health(cleared=(make.cleared(),)), policy(), NOW + 60, self.AROUND)
        assert (tainted(node), recall_record(node).open) == (False, ())

    def test_a_second_taint_of_a_tainted_node_takes_no_place(self, make: Any) -> None:
        rules = parse_policy("""
rules:
  - {name: a, match: {reason: Xid79}, action: taint}
  - {name: b, action: taint, taint: {key: example.com/other}}
""")
        node = settled(make.node(), make.health(make.finding()), rules, NOW)
        decision = decide(node, make.health(make.finding(), make.finding("Xid95", 2)), rules, NOW)
        assert (len(decision.applied(node).spec.taints), decision.takes_a_place) == (2, False)


class TestHoldDown:
    def flap(self, node: Node, make: Any, number: int, now: float, rules: Any) -> Node:
        node = settled(node, make.health(make.finding(occurrence=number)), rules, now)
        assert tainted(node)
        return settled(node, make.health(cleared=(make.cleared(occurrence=number),)), rules, now + 60)

    def test_the_first_return_waits_for_nothing_each_further_one_longer(self, make: Any) -> None:
        node, held = make.node(), []
        now = NOW
        for number in range(1, 5):
            node = self.flap(node, make, number, now, policy())
            over = make.health(cleared=(make.cleared(occurrence=number),))
            decision = decide(node, over, policy(), now + 60)
            held.append(0.0 if decision.again_at == float("inf") else decision.again_at - now - 60)
            node = settled(node, over, policy(), max(decision.again_at, now + 61) if held[-1] else now + 61)
            assert (tainted(node), recall_record(node).open) == (False, ())
            now += 60 + held[-1] + 60
        first, second, third, fourth = held
        assert first == 0.0
        assert 250 < second < 300  # a little below base: the penalty decays
        assert 1.9 * second < third < 3.0 * second
        assert 1.9 * third < fourth < 3.0 * third

    def test_what_is_held_keeps_its_taint_and_says_so(self, make: Any) -> None:
        node = self.flap(make.node(), make, 1, NOW, policy())
        health = make.health(make.finding(occurrence=2))
        node = settled(node, health, policy(), NOW + 120)
        decision = decide(node, make.health(cleared=(make.cleared(occurrence=2),)), policy(), NOW + 180)
        [fault] = recall_record(decision.applied(node)).open
        assert (fault.over, fault.how) == (rfc3339_whole(NOW + 180), "driver")
        assert tainted(decision.applied(node))
        assert [n.reason for n in decision.notices] == ["FaultHeld"]
        assert decision.condition is not None
        assert "held" in decision.condition.message

    def test_what_fires_while_it_is_held_is_open_again_and_held_longer(self, make: Any) -> None:
        node = self.flap(make.node(), make, 1, NOW, policy())
        node = self.flap(node, make, 2, NOW + 120, policy())  # held from NOW + 180 on
        node = settled(node, make.health(make.finding(occurrence=3)), policy(), NOW + 200)
        [fault] = recall_record(node).open
        assert (fault.over, fault.occurrence, fault.raised) == ("", 3, rfc3339_whole(NOW + 200))
        assert recall_record(node).penalty["dmesg"].n == pytest.approx(2.0, abs=0.05)

    def test_a_person_waits_for_no_hold_down_and_is_no_flap(self, make: Any) -> None:
        node = self.flap(make.node(), make, 1, NOW, policy())
        node = self.flap(node, make, 2, NOW + 120, policy())
        before = recall_record(node).penalty
        health = make.health(clear=(ClearEntry(check="dmesg", component="*", occurrence=2, by="ada"),))
        node = settled(node, health, policy(), NOW + 190)
        assert (tainted(node), recall_record(node).closed[0].how, recall_record(node).penalty) == (
            False,
            "person",
            before,
        )

    def test_the_penalty_decays_by_its_half_life(self, make: Any) -> None:
        node = self.flap(make.node(), make, 1, NOW, policy())
        node = self.flap(node, make, 2, NOW + 10 * 24 * HOUR, policy())
        assert not tainted(node)  # ten days later it is a first time again

    def test_faults_that_end_together_are_one_end(self, make: Any) -> None:
        two = make.health(make.finding(), make.finding("Xid95", 2))
        node = settled(make.node(), two, policy(), NOW)
        over = make.health(cleared=(make.cleared(), make.cleared(occurrence=2, reason="Xid95")))
        node = settled(node, over, policy(), NOW + 60)
        assert (tainted(node), recall_record(node).penalty["dmesg"].n) == (False, 1.0)

    def test_a_clock_that_was_set_back_holds_from_then_on(self, make: Any) -> None:
        node = self.flap(make.node(), make, 1, NOW, policy())
        node = self.flap(node, make, 2, NOW + 120, policy())
        over = make.health(cleared=(make.cleared(occurrence=2),))
        node = settled(node, over, policy(), NOW - HOUR)
        assert recall_record(node).open[0].over == rfc3339_whole(NOW - HOUR)
        assert not tainted(settled(node, over, policy(), NOW - HOUR + 3000))

    def test_a_rule_may_have_a_base_of_its_own(self, make: Any) -> None:
        rules = policy(", holdDown: 0s")
        node = self.flap(make.node(), make, 1, NOW, rules)
        assert not tainted(self.flap(node, make, 2, NOW + 120, rules))

    def test_it_never_takes_longer_than_the_longest(self) -> None:
        rules = HoldDown.model_validate({"base": "5m", "longest": "1h"})
        assert [rules.seconds(n) for n in (0, 1, 2, 64, 1000)] == [0, 300, 900, 3600, 3600]


class TestProof:
    RULES = "{rules: [{name: hw, action: taint, proof: {checks: [gpumem], passes: 2}}]}"

    def health(
        self, *findings: ReportedFinding, boot: str = "b1", check: str = "pciebw", asked: float = 0, **answer: Any
    ) -> NodeHealth:
        rules = parse_policy(self.RULES)
        proof = rules.rules[0].proof_of(check, "contact")
        assert proof is not None
        request = CheckRequest(id=ProofRequest(proof.digest, asked).id, checks=proof.checks, by=MANAGER)
        said = {"verdict": "PASS", "finished": "2026-01-01T00:00:00Z"} | answer
        return NodeHealth(
            metadata=Metadata(name="n1"),
            spec=NodeHealthSpec(requests=(request,) if asked else ()),
            status=NodeHealthStatus(
                verdict="FAIL" if findings else "PASS",
                boot_id=boot,
                checks=(ReportedCheck(name=check, verdict="FAIL" if findings else "PASS", findings=findings),),
                answers=(RequestAnswer(id=request.id, **said),) if asked else (),
            ),
        )

    FINDING = ReportedFinding(component="gpu/0", reason="SlowHostToDevice", verdict="FAIL", fault_class="contact")

    def start(self, make: Any, check: str = "pciebw") -> Node:
        node = settled(make.node(), self.health(self.FINDING, check=check), parse_policy(self.RULES), NOW)
        assert tainted(node)
        return node

    def test_what_is_asked_for_is_the_failed_check_and_those_that_the_rule_names(self, make: Any) -> None:
        proof = match_policy(recall_record(self.start(make)).open[0], parse_policy(self.RULES)).proof
        assert proof is not None
        assert (proof.checks, proof.proof.passes, proof.new_boot) == (("pciebw", "gpumem"), 2, False)

    def test_nobody_asks_an_agent_for_a_check_that_only_others_have(self) -> None:
        [rule] = parse_policy("{rules: [{name: hw, action: taint}]}").rules
        assert [rule.proof_of(check, "reboot") for check in ("agent", "condition", "dmesg", "loki")] == [None] * 4

    def test_a_pass_that_was_asked_for_after_the_fault_closes_it(self, make: Any) -> None:
        node = settled(self.start(make), self.health(self.FINDING, asked=NOW + 10), parse_policy(self.RULES), NOW + 60)
        memory = recall_record(node)
        assert (tainted(node), memory.closed[0].how) == (False, "proof")
        assert memory.closed[0].by.startswith("pciebw, gpumem passed: proof-")

    @pytest.mark.parametrize("answer", [
        {"verdict": "FAIL"}, {"verdict": "WARN"}, {"verdict": "UNKNOWN", "reason": "Busy"}, {"verdict": "SKIP"},
        {"finished": ""},
    ])  # fmt: skip
    def test_nothing_but_a_finished_pass_closes(self, make: Any, answer: dict[str, str]) -> None:
        health = self.health(self.FINDING, asked=NOW + 10, **answer)
        assert tainted(settled(self.start(make), health, parse_policy(self.RULES), NOW + 60))

    def test_a_pass_from_before_the_fault_proves_nothing(self, make: Any) -> None:
        health = self.health(self.FINDING, asked=NOW - 10)
        assert tainted(settled(self.start(make), health, parse_policy(self.RULES), NOW + 60))

    def test_a_pass_from_before_it_fired_anew_proves_nothing(self, make: Any) -> None:
        again = msgspec.structs.replace(self.FINDING, occurrence=2)
        node = settled(self.start(make), self.health(again), parse_policy(self.RULES), NOW + 20)
        assert tainted(settled(node, self.health(again, asked=NOW + 10), parse_policy(self.RULES), NOW + 60))

    def test_a_pass_of_another_proof_proves_nothing(self, make: Any) -> None:
        other = parse_policy(self.RULES.replace("passes: 2", "passes: 1"))
        assert tainted(settled(self.start(make), self.health(self.FINDING, asked=NOW + 10), other, NOW + 60))

    def test_what_the_kernel_log_said_is_proved_over_in_another_boot_only(self, make: Any) -> None:
        node = self.start(make, "dmesg")
        rules = parse_policy(self.RULES)
        assert tainted(settled(node, self.health(self.FINDING, check="dmesg", asked=NOW + 10), rules, NOW + 60))
        other = self.health(self.FINDING, check="dmesg", asked=NOW + 10, boot="b2")
        assert not tainted(settled(node, msgspec.structs.replace(other, status=msgspec.structs.replace(
            other.status, checks=(ReportedCheck(name="dmesg", verdict="PASS"),))), rules, NOW + 60))  # fmt: skip

    def test_a_run_that_the_agent_made_by_itself_closes_nothing(self, make: Any) -> None:
        health = self.health(asked=0)
        over = ClearedFault(
            component="gpu/0", reason="SlowHostToDevice", occurrence=1, how="run", at="2026-01-01T00:00:00Z"
        )
        [check] = health.status.checks
        check = msgspec.structs.replace(check, cleared=(over,))
        health = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, checks=(check,)))
        assert tainted(settled(self.start(make), health, parse_policy(self.RULES), NOW + 60))

    @pytest.mark.parametrize("how", ["proof", "source", "boot"])
    def test_an_agent_s_word_is_no_proof(self, make: Any, how: str) -> None:
        over = ClearedFault(
            component="gpu/0", reason="SlowHostToDevice", occurrence=1, how=how, at="2026-01-01T00:00:00Z"
        )
        check = ReportedCheck(name="pciebw", verdict="PASS", cleared=(over,))
        health = NodeHealth(
            metadata=Metadata(name="n1"), status=NodeHealthStatus(verdict="PASS", boot_id="b1", checks=(check,))
        )
        assert tainted(settled(self.start(make), health, parse_policy(self.RULES), NOW + 60))


class TestOthers:
    RULES = parse_policy("""
rules:
  - {name: rack, match: {correlated: 3}, action: event}
  - {name: alone, match: {solo: true}, action: taint}
  - {name: rest, action: taint, taint: {key: example.com/incident}}
incidents: {nodes: 3, within: 60s}
""")
    KEY = ("dmesg", "gpu/0000:3b:00.0", "Xid79")

    def around(self, others: int) -> DecisionContext:
        return DecisionContext(others={self.KEY: others}, incident={self.KEY: "dmesg/Xid79"} if others > 1 else {})

    def keys(self, node: Node) -> list[str]:
        return [taint.key for taint in node.spec.taints]

    def test_a_solo_fault_waits_for_others_and_is_tainted_when_none_came(self, make: Any) -> None:
        health = make.health(make.finding())
        node = settled(make.node(), health, self.RULES, NOW)
        assert self.keys(node) == []
        assert self.keys(settled(node, health, self.RULES, NOW + 60)) == ["muster.dev/faulty"]

    def test_one_of_an_incident_has_the_rule_for_that(self, make: Any) -> None:
        health = make.health(make.finding())
        node = settled(make.node(), health, self.RULES, NOW)
        node = settled(node, health, self.RULES, NOW + 20, self.around(2))
        assert (self.keys(node), recall_record(node).open[0].incident) == (["example.com/incident"], "dmesg/Xid79")
        # and keeps it when the others are over
        assert self.keys(settled(node, health, self.RULES, NOW + 600)) == ["example.com/incident"]

    def test_more_others_are_written_down_only_where_that_makes_a_difference(self, make: Any) -> None:
        rules = parse_policy("{rules: [{name: a, action: taint}]}")
        health = make.health(make.finding())
        node = settled(make.node(), health, rules, NOW, self.around(2))
        assert decide(node, health, rules, NOW, {}, self.around(50)).writes is False

    def test_correlated_counts_other_nodes(self, make: Any) -> None:
        health = make.health(make.finding())
        decision: Decision = decide(make.node(), health, self.RULES, NOW, {}, self.around(3))
        assert (decision.changes, decision.taints) == ((), None)  # an event is all that is to be


class TestOutside:
    FINDING = ReportedFinding(
        component="host", reason="KernelDeadlock", verdict="FAIL", fault_class="reboot", occurrence=1_800_000_000
    )
    KEY = ("condition", "host", "KernelDeadlock")

    def test_what_a_source_finds_taints_without_any_agent(self, make: Any) -> None:
        around = DecisionContext(external={self.KEY: self.FINDING})
        node = settled(make.node(), None, policy(), NOW, around)
        assert (tainted(node), recall_record(node).open[0].check) == (True, "condition")

    def test_its_word_that_it_is_over_closes_it(self, make: Any) -> None:
        node = settled(make.node(), make.health(), policy(), NOW, DecisionContext(external={self.KEY: self.FINDING}))
        over = ClearedFault(component="host", reason="KernelDeadlock", occurrence=1_800_000_000, how="source", at="")
        around = DecisionContext(over={self.KEY: (over,)})
        node = settled(node, make.health(), policy(), NOW + 60, around)
        assert (tainted(node), recall_record(node).closed[0].how) == (False, "source")

    def test_the_same_firing_told_again_by_a_new_leader_opens_nothing(self, make: Any) -> None:
        around = DecisionContext(external={self.KEY: self.FINDING})
        node = settled(make.node(), make.health(), policy(), NOW, around)
        over = ClearedFault(component="host", reason="KernelDeadlock", occurrence=1_800_000_000, how="source", at="")
        node = settled(node, make.health(), policy(), NOW + 60, DecisionContext(over={self.KEY: (over,)}))
        assert not tainted(settled(node, make.health(), policy(), NOW + 90, around))

    def test_silence_of_the_source_closes_nothing(self, make: Any) -> None:
        node = settled(make.node(), make.health(), policy(), NOW, DecisionContext(external={self.KEY: self.FINDING}))
        assert tainted(settled(node, make.health(boot="b2"), policy(), NOW + 60))


class TestDisowned:
    RULES = parse_policy("rules: [{name: hw, match: {class: replace}, action: taint}]")
    OVER = ClearedFault(component="gpu/0", reason="Xid48", occurrence=3, how="disowned", at="2026-01-01T00:00:00Z")

    def health(self, *findings: ReportedFinding, cleared: tuple[ClearedFault, ...] = ()) -> NodeHealth:
        check = ReportedCheck(name="dmesg", verdict="FAIL" if findings else "PASS", findings=findings, cleared=cleared)
        status = NodeHealthStatus(verdict=check.verdict, boot_id="b1", checks=(check,))
        return NodeHealth(metadata=Metadata(name="n1"), status=status)

    def finding(self, occurrence: int) -> ReportedFinding:
        return ReportedFinding(
            component="gpu/0", reason="Xid48", verdict="FAIL", fault_class="replace", occurrence=occurrence
        )

    @pytest.mark.parametrize("occurrence", [1, 3])
    def test_a_disowned_fault_is_closed_at_once_and_is_no_flap(self, occurrence: int) -> None:
        node = Node(metadata=Metadata(name="n1"))
        node = settled(node, self.health(self.finding(occurrence)), self.RULES, NOW)
        assert tainted(node)
        decision = decide(node, self.health(cleared=(self.OVER,)), self.RULES, NOW + 1)
        assert {notice.reason for notice in decision.notices} >= {"FaultClosed", "FindingDisowned", "NodeUntainted"}
        node = decision.applied(node)
        assert not tainted(node)
        record = recall_record(node)
        assert [(closed.how, closed.occurrence) for closed in record.closed] == [("disowned", occurrence)]
        assert not record.penalty

    def test_a_later_firing_beside_it_keeps_the_taint(self) -> None:
        node = settled(Node(metadata=Metadata(name="n1")), self.health(self.finding(3)), self.RULES, NOW)
        node = settled(node, self.health(self.finding(4), cleared=(self.OVER,)), self.RULES, NOW + 1)
        assert tainted(node)
        assert [fault.occurrence for fault in recall_record(node).open] == [4]

    def test_it_closes_no_fault_that_another_source_reports(self) -> None:
        key = ("dmesg", "gpu/0", "Xid48")
        around = DecisionContext(external={key: self.finding(3)})
        node = settled(Node(metadata=Metadata(name="n1")), self.health(), self.RULES, NOW, around)
        node = settled(node, self.health(cleared=(self.OVER,)), self.RULES, NOW + 1, around)
        assert tainted(node)

    def test_faults_that_are_counted_together_close_with_the_last_one_that_is_disowned(self) -> None:
        forged = [msgspec.structs.replace(self.finding(n), reason=f"Xid{n}") for n in range(1, 61)]
        node = settled(Node(metadata=Metadata(name="n1")), self.health(*forged), self.RULES, NOW)
        assert any(fault.rest for fault in recall_record(node).open)
        over = tuple(msgspec.structs.replace(self.OVER, reason=f.reason, occurrence=f.occurrence) for f in forged)
        true = self.finding(61)
        kept = settled(node, self.health(true, cleared=over), self.RULES, NOW + 1)
        assert [fault.rest > 0 for fault in recall_record(kept).open] == [True, False], "it may count the true one"
        freed = settled(node, self.health(cleared=over), self.RULES, NOW + 1)
        assert not tainted(freed)

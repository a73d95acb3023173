"""What users of other systems complain about in their issue lists, each by its number: here it does not happen."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tainter.verification.proved_node import ProvedNode

from muster_cli.__main__ import main
from muster_kube.api.objects import ManagedMetadata, ManagedNode, Node, Taint
from muster_kube.nodehealth import ClearEntry, NodeHealth
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, missing_taints, recall_record
from muster_tainter.faults.node_report import FINDINGS_LIMIT
from muster_tainter.faults.record.node_record import ANNOTATION, OPEN_LIMIT, SIZE_LIMIT, as_our_taint
from muster_tainter.faults.taint_drift import TaintRemoval, find_removers
from muster_tainter.policy.file import load_policy, parse_policy
from muster_tainter.policy.rules import Policy

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z
SHIPPED = load_policy(None)
CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def settled(node: Node, health: NodeHealth, policy: Policy = SHIPPED, now: float = T0, **around: Any) -> Node:
    """The Node once what was decided is written; a second look finds nothing more to do."""
    made = decide(node, health, policy, now, {}, DecisionContext(**around)).applied(node)
    assert not decide(made, health, policy, now, {}, DecisionContext(**around)).writes
    return made


def keys(node: Node) -> list[str]:
    return [taint.key for taint in node.spec.taints]


class TestFalsePositives:
    """NVSentinel 1629, 1710, 1712, 911, 1423; EKS containers-roadmap 2555."""

    @pytest.mark.parametrize(
        ("number", "tainted"), [(13, 0), (31, 0), (43, 0), (45, 0), (63, 0), (94, 0), (79, 1), (48, 1)]
    )
    def test_1629_no_application_s_error_takes_a_node(
        self, tmp_path: Path, capsys: Any, number: int, tainted: int
    ) -> None:
        log = tmp_path / "n1.log"
        log.write_text(
            f"2026-01-01T01:00:00,000000+00:00 NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711, name=python\n"
        )
        policy = tmp_path / "policy.yaml"
        policy.write_text("rules: [{name: hw, match: {class: [reset, reboot, replace, contact]}, action: taint}]")
        assert main(["replay", str(policy), "--log", str(log), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["nodesTainted"] == tainted

    def test_911_a_failure_that_asks_for_nothing_leaves_the_node_alone(self, make: Any) -> None:
        assert keys(settled(make.node(), make.health(make.finding(fault_class="")))) == []

    @pytest.mark.parametrize("reason", ["ToolMissing", "Timeout", "Unparsable"])
    def test_1423_2555_what_could_not_be_measured_takes_no_node(self, make: Any, reason: str) -> None:
        unknown = make.finding(reason, verdict="UNKNOWN", message="cannot connect to nv-hostengine")
        node = settled(make.node(), make.health(unknown))
        assert (keys(node), recall_record(node).open) == ([], ())


class TestNotClearing:
    """NPD 215, 470, 936, 1011, 429; NVSentinel 363, 458, 1872, 1439; gpud 1072; DRA 1455; soperator 1317."""

    def test_215_a_condition_of_another_agent_that_is_over_leaves_no_taint(self, make: Any) -> None:
        found = make.finding("KernelDeadlock", component="host", fault_class="reboot")
        key = ("condition", "host", "KernelDeadlock")
        node = settled(make.node(), make.health(), external={key: found})
        assert keys(node) == ["muster.dev/faulty"]
        over = make.cleared("source", component="host", reason="KernelDeadlock")
        assert keys(settled(node, make.health(), now=T0 + 60, over={key: (over,)})) == []

    def test_429_an_agent_that_was_restarted_and_knows_nothing_makes_no_bad_node_healthy(self, make: Any) -> None:
        node = settled(make.node(), make.health(make.finding()))
        assert keys(settled(node, make.health(), now=T0 + 60)) == ["muster.dev/faulty"]
        assert keys(settled(node, make.health(boot="boot-2", verdict="UNKNOWN"), now=T0 + 60)) == ["muster.dev/faulty"]

    def test_363_458_a_repaired_node_comes_back_by_itself(self, make: Any) -> None:
        node = settled(make.node(), make.health(make.finding()))
        node = settled(node, make.health(boot="boot-2"), now=T0 + 600)
        assert (keys(node), node.metadata.labels) == ([], {"muster.dev/health": "pass"})

    def test_1872_a_taint_that_a_person_takes_off_leaves_no_label_behind(self, make: Any) -> None:
        said = make.health(make.finding())
        node = settled(make.node(), said)
        bare = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=()))
        missing = missing_taints(bare, SHIPPED)
        seen = TaintRemoval(before=node.spec.taints, after=(), settled_s=60.0)
        full = ManagedNode(metadata=ManagedMetadata(name="n1"))
        by = find_removers(missing, seen, full, SHIPPED, "muster-tainter")
        assert list(by) == [as_our_taint(make.faulty)]
        decision = decide(bare, said, SHIPPED, T0 + 60, by)
        free = decision.applied(bare)
        assert (keys(free), free.metadata.labels.get("muster.dev/faulty"), recall_record(free).open) == ([], None, ())
        assert keys(settled(free, said, now=T0 + 90)) == []

    def test_1439_a_second_fault_s_taint_comes_and_the_first_one_s_goes(self, make: Any) -> None:
        policy = parse_policy("""
rules:
  - {name: first, match: {reason: Xid79}, action: taint, taint: {key: example.com/first}}
  - {name: second, match: {reason: Xid95}, action: taint, taint: {key: example.com/second}}
""")
        first, second = make.finding(), make.finding("Xid95", 2, fault_class="reset")
        node = settled(make.node(), make.health(first), policy)
        node = settled(node, make.health(first, second), policy)
        assert keys(node) == ["example.com/first", "example.com/second"]
        node = settled(node, make.health(second, cleared=(make.cleared(),)), policy, T0 + 60)
        assert keys(node) == ["example.com/second"]

    def test_1072_a_person_sets_a_node_healthy_with_one_word(self, make: Any) -> None:
        said = make.finding(occurrence=3)
        node = settled(make.node(), make.health(said))
        clear = ClearEntry(check="dmesg", component="*", occurrence=3, by="ada", at="2026-01-01T00:00:00Z")
        node = settled(node, make.health(said, clear=(clear,)), now=T0 + 60)
        assert (keys(node), [(closed.how, closed.by) for closed in recall_record(node).closed]) == (
            [],
            [("person", "ada")],
        )

    def test_1455_1317_the_taint_goes_by_a_test_of_what_failed_and_nothing_is_restarted(self) -> None:
        node = ProvedNode()
        node.fails("remapped", fault_class="contact")
        node.settle()
        node.after(61)
        assert [request.checks for request in node.asked()] == [("remapped",)]
        node.answer("PASS")
        node.after(1)
        assert (node.tainted, node.boot) == (False, 1)


class TestOwnership:
    """NVSentinel 1424; k8s-driver-manager 212."""

    def test_1424_what_others_cordoned_or_tainted_stays_so(self, make: Any) -> None:
        theirs = Taint(key="muster.example/faulty", effect="NoSchedule", value="true")
        cordoned = make.node(CORDONED, theirs)
        cordoned = msgspec.structs.replace(cordoned, spec=msgspec.structs.replace(cordoned.spec, unschedulable=True))
        node = settled(cordoned, make.health(make.finding()))
        assert keys(node) == [CORDONED.key, theirs.key, "muster.dev/faulty"]
        decision = decide(node, make.health(boot="boot-2"), SHIPPED, T0 + 60)
        assert keys(decision.applied(node)) == [CORDONED.key, theirs.key]
        assert "unschedulable" not in decision.patch("1")["spec"]

    def test_1424_the_very_taint_of_ours_set_by_somebody_before_stays_when_our_fault_is_over(self, make: Any) -> None:
        policy = parse_policy("rules: [{name: hw, action: taint, taint: {key: example.com/bad, value: x}}]")
        theirs = Taint(key="example.com/bad", value="x", effect="NoSchedule")
        node = settled(make.node(theirs), make.health(make.finding()), policy)
        assert keys(settled(node, make.health(boot="boot-2"), policy, T0 + 60)) == ["example.com/bad"]


class TestFloods:
    """NVSentinel 1120 (800,000 entries of Xid 95, 29 distinct); NPD 124, 282."""

    def test_1120_800_000_entries_of_29_kinds_are_29_faults_and_one_write(self, make: Any) -> None:
        kinds = [
            make.finding("Xid95", n, component=f"gpu/0000:{n:02x}:00.0", fault_class="reset") for n in range(1, 30)
        ]
        decision = decide(make.node(), make.health(*kinds), SHIPPED, T0)
        node = decision.applied(make.node())
        assert (len(recall_record(node).open), len(decision.taint_changes)) == (29, 1)
        for entries in (1, 1000, 800_000):
            more = [msgspec.structs.replace(found, count=entries) for found in kinds]
            again: Decision = decide(node, make.health(*more), SHIPPED, T0 + entries)
            assert (again.writes, again.notices) == (False, ())

    @pytest.mark.parametrize("count", [FINDINGS_LIMIT, 10_000])
    def test_1120_more_faults_than_an_annotation_holds_are_counted(self, make: Any, count: int) -> None:
        many = [make.finding("Xid95", n, component=f"gpu/{n}", fault_class="reset") for n in range(1, count + 1)]
        node = settled(make.node(), make.health(*many))
        faults = recall_record(node).open
        assert len(node.metadata.annotations[ANNOTATION].encode()) <= SIZE_LIMIT
        assert len(faults) <= OPEN_LIMIT + 1
        assert sum(fault.rest or 1 for fault in faults) == FINDINGS_LIMIT, "a report has no more"
        assert keys(node) == ["muster.dev/faulty"]

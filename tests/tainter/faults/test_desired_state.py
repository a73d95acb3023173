"""What a Node should carry, decided from values."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Node, NodeCondition, Taint
from muster_kube.api.times import seconds
from muster_kube.nodehealth import ClearEntry, NodeHealth, NodeHealthSpec, RequestAnswer
from muster_tainter.faults.decision_context import AssignedRole, DecisionContext
from muster_tainter.faults.desired_state import (
    FENCE_ANNOTATION,
    SPARE_TAINT,
    Decision,
    decide,
    missing_taints,
    recall_record,
)
from muster_tainter.faults.messages import CONDITION
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.record.check_history import ANNOTATION as TESTS
from muster_tainter.faults.record.check_history import CheckHistory, encode_history
from muster_tainter.faults.record.node_record import ANNOTATION, UNREADABLE_ANNOTATION, as_our_taint
from muster_tainter.policy.file import load_policy, parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.verification.fleet_plan import request_for

NOW = 1_800_000_000.0
POLICY = load_policy(None)
RELEASING = parse_policy("rules: [{name: all, action: taint, closeOn: [driver], holdDown: 0s}]")
OTHER = Taint(key="example.com/maintenance", effect="NoExecute", value="x", time_added="2026-01-01T00:00:00Z")


def settle(node: Node, health: NodeHealth | None, policy: Policy = POLICY, now: float = NOW) -> tuple[Node, Decision]:
    """The Node after one decision; a second one must find nothing to do."""
    decision = decide(node, health, policy, now)
    after = decision.applied(node)
    again = decide(after, health, policy, now + 1)
    assert not again.writes, again
    assert not again.notices
    assert not again.taint_changes
    assert again.condition == decision.condition
    return after, decision


def with_condition(node: Node, condition: NodeCondition) -> Node:
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=(condition,)))


def reasons(decision: Decision) -> list[str]:
    return [notice.reason for notice in decision.notices]


def test_a_failure_of_hardware_taints_and_labels_in_one_patch(make: Any) -> None:
    node, decision = settle(make.node(OTHER), make.health(make.finding()))
    assert node.spec.taints == (OTHER, make.faulty)
    assert node.metadata.labels == {"muster.dev/faulty": "true", "muster.dev/health": "fail"}
    assert reasons(decision) == ["NodeFaultOpened", "NodeTainted"]
    assert set(decision.patch("7")) == {"metadata", "spec"}
    assert decision.patch("7")["metadata"]["resourceVersion"] == "7"
    [change] = decision.taint_changes
    assert (change.rule, change.added) == ("hardware", True)


def test_the_condition_explains_with_line_class_and_rule(make: Any) -> None:
    _, decision = settle(make.node(), make.health(make.finding()))
    assert decision.condition is not None
    assert (decision.condition.type, decision.condition.status, decision.condition.reason) == (
        CONDITION,
        "False",
        "Xid79",
    )
    for part in ("fallen off the bus", "class reboot", "rule hardware"):
        assert part in decision.condition.message


@pytest.mark.parametrize("verdict", ["WARN", "UNKNOWN"])
@pytest.mark.parametrize("fault_class", ["", "restart-app", "reboot"])
def test_nothing_but_a_failure_taints_by_default(make: Any, verdict: str, fault_class: str) -> None:
    node, _ = settle(make.node(), make.health(make.finding(verdict=verdict, fault_class=fault_class)))
    assert node.spec.taints == ()
    assert "muster.dev/faulty" not in node.metadata.labels


@pytest.mark.parametrize("fault_class", ["", "restart-app", "quarantine"])
def test_a_failure_that_asks_for_no_repair_does_not_taint(make: Any, fault_class: str) -> None:
    node, _ = settle(make.node(), make.health(make.finding(fault_class=fault_class)))
    assert node.spec.taints == ()


def test_absence_alone_closes_nothing(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, make.health())
    assert node.spec.taints == (make.faulty,)


def test_a_reboot_closes_once_its_first_pass_no_longer_finds_it(make: Any) -> None:
    tainted, _ = settle(make.node(OTHER), make.health(make.finding()))
    still, _ = settle(tainted, make.health(make.finding(), boot="boot-2"))
    assert make.faulty in still.spec.taints
    node, decision = settle(tainted, make.health(boot="boot-2"))
    assert node.spec.taints == (OTHER,)
    assert node.metadata.labels == {"muster.dev/health": "pass"}
    assert reasons(decision) == ["FaultClosed", "NodeUntainted"]
    [closed] = recall_record(node).closed
    assert (closed.how, closed.occurrence) == ("boot", 1)


def test_a_finding_seen_after_the_reboot_needs_another_reboot(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(node, make.health(make.finding(), boot="boot-2"))
    node, _ = settle(node, make.health(boot="boot-2"))
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(boot="boot-3"))
    assert node.spec.taints == ()


@pytest.mark.parametrize("verdict", ["UNKNOWN", "SKIP"])
def test_a_check_that_did_not_measure_in_the_new_boot_closes_nothing(make: Any, verdict: str) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, make.health(boot="boot-2", verdict=verdict))
    assert node.spec.taints == (make.faulty,)


def test_findings_left_out_of_the_report_close_nothing(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, make.health(make.finding("Xid1"), boot="boot-2", more=3))
    assert "Xid79" in [fault.reason for fault in recall_record(node).open]


def test_the_first_boot_id_of_an_agent_is_no_reboot(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding(), boot=""))
    node, _ = settle(node, make.health(boot="boot-1"))
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(boot="boot-2"))
    assert node.spec.taints == ()


def test_the_drivers_word_closes_what_it_covers(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding(occurrence=4)))
    early, _ = settle(tainted, make.health(cleared=(make.cleared(occurrence=3),)))
    assert early.spec.taints == (make.faulty,)
    node, _ = settle(tainted, make.health(cleared=(make.cleared(occurrence=4),)))
    assert node.spec.taints == ()


@pytest.mark.parametrize(("fault_class", "how", "closes"), [
    ("reset", "driver", True), ("reset", "quiet", False), ("reset", "run", False),
    ("replace", "driver", False), ("contact", "quiet", False), ("replace", "request", True),
])  # fmt: skip
def test_the_class_says_whose_word_closes(make: Any, fault_class: str, how: str, closes: bool) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding(fault_class=fault_class)))
    node, _ = settle(tainted, make.health(cleared=(make.cleared(how),)))
    assert (node.spec.taints == ()) == closes


def test_no_reboot_closes_what_asks_for_replacement(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding(fault_class="replace")))
    node, _ = settle(tainted, make.health(boot="boot-2"))
    assert node.spec.taints == (make.faulty,)


@pytest.mark.parametrize("component", ["gpu/0000:3b:00.0", "*"])
def test_a_persons_clear_closes_at_once_and_names_the_person(make: Any, component: str) -> None:
    finding = make.finding(fault_class="replace", occurrence=5)
    tainted, _ = settle(make.node(), make.health(finding))
    clear = ClearEntry(check="dmesg", component=component, occurrence=5, by="ada")
    node, _ = settle(tainted, make.health(finding, clear=(clear,)))
    assert node.spec.taints == ()
    assert recall_record(node).closed[0].by == "ada"
    # the agent goes on saying it, the request is gone: closed stays closed
    node, _ = settle(node, make.health(finding))
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(make.finding(fault_class="replace", occurrence=6)))
    assert node.spec.taints == (make.faulty,)


@pytest.mark.parametrize(("check", "component", "occurrence"), [
    ("dmesg", "gpu/0000:3b:00.0", 4), ("pciebw", "*", 9), ("dmesg", "gpu/0000:99:00.0", 9),
])  # fmt: skip
def test_a_clear_of_something_else_closes_nothing(make: Any, check: str, component: str, occurrence: int) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding(occurrence=5)))
    clear = ClearEntry(check=check, component=component, occurrence=occurrence)
    node, _ = settle(tainted, make.health(make.finding(occurrence=5), clear=(clear,)))
    assert node.spec.taints == (make.faulty,)


def test_what_a_person_cleared_before_it_was_seen_is_not_opened(make: Any) -> None:
    clear = ClearEntry(check="dmesg", component="*", occurrence=5)
    node, _ = settle(make.node(), make.health(make.finding(occurrence=5), clear=(clear,)))
    assert node.spec.taints == ()


def test_a_new_firing_of_an_open_fault_needs_its_own_closing(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding(occurrence=1)))
    node, decision = settle(node, make.health(make.finding(occurrence=2)))
    assert reasons(decision) == ["NodeFaultOpened"]
    node, _ = settle(node, make.health(cleared=(make.cleared(occurrence=1),)))
    assert node.spec.taints == (make.faulty,)


def test_an_open_fault_is_not_closed_by_milder_words(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, make.health(make.finding(verdict="WARN")))
    assert node.spec.taints == (make.faulty,)


TWO_KEYS = parse_policy("""
rules:
  - {name: gpu, match: {component: "gpu/*"}, action: taint, taint: {key: example.com/gpu, effect: NoExecute}}
  - {name: rest, action: taint}
""")


def test_two_faults_with_two_taints_come_and_go_apart(make: Any) -> None:
    gpu, nic = make.finding(), make.finding("LinkDown", 2, component="nic/mlx5_0")
    node, _ = settle(make.node(), make.health(gpu, nic), TWO_KEYS)
    assert {taint.key for taint in node.spec.taints} == {"example.com/gpu", "muster.dev/faulty"}
    node, _ = settle(node, make.health(nic, cleared=(make.cleared(),)), TWO_KEYS)
    assert [taint.key for taint in node.spec.taints] == ["muster.dev/faulty"]


def test_one_taint_stays_while_another_fault_wants_it(make: Any) -> None:
    one, two = make.finding(), make.finding("Xid95", 2)
    node, _ = settle(make.node(), make.health(one, two))
    node, _ = settle(node, make.health(two, cleared=(make.cleared(),)))
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(cleared=(make.cleared(occurrence=2, reason="Xid95"),)))
    assert node.spec.taints == ()


def test_the_same_taint_set_by_somebody_else_stays_theirs(make: Any) -> None:
    theirs = Taint(key="example.com/gpu", effect="NoExecute", value="true")
    node, decision = settle(make.node(theirs), make.health(make.finding()), TWO_KEYS)
    assert node.spec.taints == (theirs,)
    assert decision.memory.ours == ()
    assert "muster.dev/faulty" not in node.metadata.labels
    node, _ = settle(node, make.health(cleared=(make.cleared(),)), TWO_KEYS)
    assert node.spec.taints == (theirs,)


def test_a_taint_under_our_prefix_without_a_fault_comes_off(make: Any) -> None:
    node, _ = settle(make.node(OTHER, make.faulty), make.health())
    assert node.spec.taints == (OTHER,)


def test_the_startup_taint_comes_off_after_the_first_full_pass(make: Any) -> None:
    startup = Taint(key="muster.dev/startup", effect="NoSchedule")
    node, _ = settle(make.node(startup), None)
    assert node.spec.taints == (startup,)
    node, _ = settle(node, make.health(boot=""))
    assert node.spec.taints == (startup,)
    node, _ = settle(node, make.health())
    assert node.spec.taints == ()


def test_the_startup_taint_waits_for_what_the_pool_asks_of_a_new_node(make: Any) -> None:
    policy = parse_policy("{rules: [], pools: [{name: a, selector: {}, testing: {preFlight: [pciebw, dcgm]}}]}")
    startup = Taint(key="muster.dev/startup", effect="NoSchedule")

    def passed(boot: str, *checks: str) -> NodeHealth:
        past = encode_history(CheckHistory(boot=boot, passed=checks))
        health: NodeHealth = make.health(boot="boot-1")
        metadata = msgspec.structs.replace(health.metadata, annotations={TESTS: past})
        return msgspec.structs.replace(health, metadata=metadata)

    for health in (make.health(), passed("boot-1", "pciebw"), passed("boot-0", "pciebw", "dcgm"), UnusableHealth("x")):
        node, _ = settle(make.node(startup), health, policy)
        assert node.spec.taints == (startup,)
    node, _ = settle(make.node(startup), passed("boot-1", "dcgm", "pciebw"), policy)
    assert node.spec.taints == ()


def test_a_node_that_tests_is_labelled_until_it_has_answered_or_is_given_up(make: Any) -> None:
    request = request_for("gpumem", "1", NOW)
    health = msgspec.structs.replace(make.health(), spec=NodeHealthSpec(requests=(request,)))
    node, decision = settle(make.node(), health)
    assert node.metadata.labels["muster.dev/testing"] == "gpumem"
    assert not decision.urgent
    answer = RequestAnswer(id=request.id, verdict="PASS", finished="2026-01-01T00:00:00Z")
    status = msgspec.structs.replace(health.status, answers=(answer,))
    for after in (make.health(), msgspec.structs.replace(health, status=status), None, UnusableHealth("x")):
        free, _ = settle(node, after)
        assert "muster.dev/testing" not in free.metadata.labels
    left = msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, "muster.dev/managed": "false"}),
    )
    free, _ = settle(left, health)
    assert "muster.dev/testing" not in free.metadata.labels


def test_a_vanished_taint_is_put_back_with_an_event(make: Any) -> None:
    health = make.health(make.finding())
    tainted, _ = settle(make.node(), health)
    bare = msgspec.structs.replace(tainted, spec=make.node(OTHER).spec)
    assert missing_taints(bare, POLICY) == (as_our_taint(make.faulty),)
    node, decision = settle(bare, health)
    assert node.spec.taints == (OTHER, make.faulty)
    assert reasons(decision) == ["TaintPutBack"]


def test_a_taint_taken_off_by_a_person_counts_as_cleared(make: Any) -> None:
    health = make.health(make.finding(), make.finding("Xid95", 2))
    tainted, _ = settle(make.node(), health)
    bare = msgspec.structs.replace(tainted, spec=make.node().spec)
    decision = decide(bare, health, POLICY, NOW, {as_our_taint(make.faulty): "kubectl-taint"})
    node, _ = settle(decision.applied(bare), health)
    assert node.spec.taints == ()
    assert node.metadata.labels == {"muster.dev/health": "fail"}
    assert {(c.how, c.by) for c in recall_record(node).closed} == {("person", "kubectl-taint")}


def test_unmanaged_takes_off_everything_of_ours_and_nothing_else(make: Any) -> None:
    tainted, _ = settle(make.node(OTHER, labels={"zone": "a"}), make.health(make.finding()), TWO_KEYS)
    labels = tainted.metadata.labels | {"muster.dev/managed": "false"}
    tainted = msgspec.structs.replace(tainted, metadata=msgspec.structs.replace(tainted.metadata, labels=labels))
    node, decision = settle(tainted, make.health(make.finding()), TWO_KEYS)
    assert node.spec.taints == (OTHER,)
    assert node.metadata.labels == {"zone": "a", "muster.dev/managed": "false"}
    assert node.metadata.annotations == {}
    assert decision.condition is None


@pytest.mark.parametrize("how", ["missing", "empty", "undecodable", "nonsense"])
def test_without_a_usable_report_faults_stay_and_none_open(make: Any, how: str) -> None:
    broken: Any = {
        "missing": None,
        "empty": NodeHealth(metadata=make.health().metadata),
        "undecodable": UnusableHealth("Expected `str`, got `int`"),
        "nonsense": make.health(make.finding("Xid95", -3), boot="boot-2", cleared=(make.cleared(),)),
    }[how]
    fresh, decision = settle(make.node(), broken)
    assert fresh.spec.taints == ()
    assert fresh.metadata.labels == {"muster.dev/health": "unknown"}
    assert ("HealthUnreadable" in reasons(decision)) == (how in ("undecodable", "nonsense"))
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, broken)
    assert node.spec.taints == (make.faulty,)
    assert node.metadata.labels["muster.dev/health"] == "unknown"


@pytest.mark.parametrize("before", ["NoReport", "NotMeasured", "AgentSilent", "ReportUnreadable"])
def test_an_invalid_report_makes_one_event_though_the_nodes_health_was_unknown_before(make: Any, before: str) -> None:
    bare = make.node(labels={"muster.dev/health": "unknown"})
    node = with_condition(bare, NodeCondition(type=CONDITION, status="Unknown", reason=before))
    decision = decide(node, UnusableHealth("Expected `str`, got `int`"), POLICY, NOW)
    assert reasons(decision) == ([] if before == "ReportUnreadable" else ["HealthUnreadable"])
    assert decision.condition is not None
    _, again = settle(with_condition(bare, decision.condition), UnusableHealth("Expected `str`, got `int`"))
    assert reasons(again) == []


def test_an_invalid_report_whose_valid_part_opens_a_fault_makes_its_event_too(make: Any) -> None:
    bare = make.node(labels={"muster.dev/health": "unknown"})
    node = with_condition(bare, NodeCondition(type=CONDITION, status="Unknown", reason="NoReport"))
    decision = decide(node, make.health(make.finding(), make.finding("Xid95", -3)), POLICY, NOW)
    assert {"HealthUnreadable", "NodeFaultOpened"} <= set(reasons(decision))


def test_a_persons_word_counts_even_if_the_agent_talks_nonsense(make: Any) -> None:
    tainted, _ = settle(make.node(), make.health(make.finding()))
    clear = ClearEntry(check="dmesg", component="*", occurrence=1)
    node, _ = settle(tainted, make.health(make.finding(occurrence=-1), clear=(clear,)))
    assert node.spec.taints == ()


def test_a_rule_that_no_longer_taints_lets_go_and_one_that_does_again_takes_back(make: Any) -> None:
    mild = parse_policy("rules: [{name: all, action: event}]")
    tainted, _ = settle(make.node(), make.health(make.finding()))
    node, _ = settle(tainted, make.health(make.finding()), mild)
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(make.finding()))
    assert node.spec.taints == (make.faulty,)


def test_another_key_in_the_policy_moves_the_taint(make: Any) -> None:
    tainted, _ = settle(make.node(OTHER), make.health(make.finding()))
    node, _ = settle(tainted, make.health(make.finding()), TWO_KEYS)
    assert [taint.key for taint in node.spec.taints] == [OTHER.key, "example.com/gpu"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"open": 3}', '{"open": [{"check": "x"}]}', '{"ours": [{"key": 1}]}', "\x00"]
)
def test_unreadable_memory_is_kept_aside_and_rebuilt(make: Any, text: str) -> None:
    node, decision = settle(make.node(make.faulty, OTHER, **{ANNOTATION: text}), make.health(make.finding()))
    assert node.spec.taints == (make.faulty, OTHER)
    assert node.metadata.annotations[UNREADABLE_ANNOTATION] == text
    assert "MemoryUnreadable" in reasons(decision)
    assert [fault.reason for fault in recall_record(node).open] == ["Xid79"]


def test_a_taint_whose_reason_was_lost_stays_until_a_good_boot(make: Any) -> None:
    node, _ = settle(make.node(make.faulty, **{ANNOTATION: "{"}), make.health())
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(boot="boot-2", verdict="FAIL"))
    assert node.spec.taints == (make.faulty,)
    node, _ = settle(node, make.health(boot="boot-2"))
    assert node.spec.taints == ()


def test_closed_numbers_are_kept_while_their_findings_are_reported(make: Any) -> None:
    findings = tuple(make.finding(f"Xid{n}", n) for n in range(1, 31))
    node, _ = settle(make.node(), make.health(*findings))
    clear = ClearEntry(check="dmesg", component="*", occurrence=30)
    node, _ = settle(node, make.health(*findings, clear=(clear,)))
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(*findings), now=NOW + 10 * 86400)
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(*findings, make.finding("Xid95", 31)), now=NOW + 10 * 86400)
    assert [fault.reason for fault in recall_record(node).open] == ["Xid95"]


def test_many_faults_are_counted_and_closed_by_a_clear_of_all(make: Any) -> None:
    findings = tuple(make.finding(f"Xid{n}", n, component=f"gpu/{n}") for n in range(1, 65))
    node, decision = settle(make.node(), make.health(*findings))
    assert len(node.metadata.annotations[ANNOTATION]) <= 8192
    assert sum(fault.rest or 1 for fault in decision.memory.open) == 64
    clear = ClearEntry(check="dmesg", component="*", occurrence=64, by="ada")
    node, _ = settle(node, make.health(*findings, clear=(clear,)))
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(*findings))
    assert node.spec.taints == ()


@pytest.mark.parametrize("name", ["muster", "*"])
def test_a_report_under_the_tainters_own_names_sets_no_taint(make: Any, name: str) -> None:
    lost = make.finding("MemoryLost", component="taint/node.kubernetes.io/unreachable:NoExecute", fault_class="contact")
    health = make.health(lost)
    replace = msgspec.structs.replace
    forged = replace(health, status=replace(health.status, checks=(replace(health.status.checks[0], name=name),)))
    decision = decide(make.node(), forged, POLICY, NOW)
    assert decision.taints is None
    assert "HealthUnreadable" in reasons(decision)


# a node that waits, and writes of a former leader


def test_a_node_that_waits_is_written_once_for_each_leader(make: Any) -> None:
    node, health = make.node(), make.health(make.finding())
    versions = []
    for fence in ("7", "7", "9"):
        waits = DecisionContext(withhold="budget: full", fence=fence)
        decision = decide(node, health, POLICY, NOW, context=waits)
        assert (decision.taints, decision.urgent) == (None, fence not in versions)
        node = decision.applied(node)
        versions.append(node.metadata.annotations[FENCE_ANNOTATION])
        # no leader before it can write any more: it is left as it is
        assert not decide(node, health, POLICY, NOW, context=DecisionContext(withhold="budget: full")).writes
    assert versions == ["7", "7", "9"]


def test_the_fence_goes_with_the_taint(make: Any) -> None:
    waits = DecisionContext(withhold="budget: full", fence="7")
    node = decide(make.node(), make.health(make.finding()), POLICY, NOW, context=waits).applied(make.node())
    after, decision = settle(node, make.health(make.finding()))
    assert FENCE_ANNOTATION not in after.metadata.annotations
    assert (after.spec.taints, bool(decision.annotations)) == ((make.faulty,), True)


def test_a_node_without_a_fault_is_written_too_if_a_former_leader_may_taint_it(make: Any) -> None:
    decision = decide(make.node(), make.health(), POLICY, NOW, context=DecisionContext(fence="7"))
    assert decision.annotations == {FENCE_ANNOTATION: "7"}


# what is written, field by field


def test_the_patch_carries_the_whole_list_of_taints_and_none_for_an_empty_one(make: Any) -> None:
    tainted, decision = settle(make.node(), make.health(make.finding()))
    assert decision.patch("7")["spec"] == {"taints": (make.faulty,)}
    released = decide(tainted, make.health(cleared=(make.cleared(),)), RELEASING, NOW)
    assert (released.taints, released.patch("8")["spec"]) == ((), {"taints": None})


def test_the_record_keeps_the_time_of_the_first_taint(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding()))
    first = recall_record(node).tainted
    assert seconds(first) == NOW
    both = make.health(make.finding(), make.finding("Xid48", occurrence=2, fault_class="replace"))
    node, _ = settle(node, both, now=NOW + 60)
    assert (len(recall_record(node).open), recall_record(node).tainted) == (2, first)
    node, _ = settle(node, make.health(cleared=(make.cleared(), make.cleared(reason="Xid48", occurrence=2))), RELEASING)
    assert node.spec.taints == ()
    node, _ = settle(node, make.health(make.finding(occurrence=3)), RELEASING, now=NOW + 120)
    assert seconds(recall_record(node).tainted) == NOW + 120


def test_an_unmanaged_node_is_reported_as_released(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding()))
    labels = node.metadata.labels | {"muster.dev/managed": "false"}
    meta = msgspec.structs.replace(node.metadata, labels=labels)
    decision = decide(msgspec.structs.replace(node, metadata=meta), make.health(make.finding()), POLICY, NOW)
    assert [(change.taint, change.added) for change in decision.taint_changes] == [(make.faulty, False)]


@pytest.mark.parametrize("role", SpareRole)
def test_only_a_spare_has_the_taint_of_spares(make: Any, role: SpareRole) -> None:
    context = DecisionContext(spare=AssignedRole(role=role, why="of two"))
    decision = decide(make.node(), make.health(), POLICY, NOW, context=context)
    assert (SPARE_TAINT in (decision.taints or ())) == (role is SpareRole.SPARE)


def test_a_taint_is_explained_by_the_first_fault_that_wants_it(make: Any) -> None:
    both = make.health(make.finding(), make.finding("Xid48", occurrence=2, fault_class="replace"))
    _, decision = settle(make.node(), both)
    [change] = decision.taint_changes
    assert ("Xid79" in change.why, "Xid48" in change.why) == (True, False)

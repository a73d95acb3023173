"""A taken node forges occurrences: no number hides what is reported later, no nonsense a failure beside it."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Node
from muster_kube.nodehealth import OCCURRENCE_GAP, ClearEntry, NodeHealth, ReportedCheck
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.manual_clear import clear_entries
from muster_tainter.faults.node_report import read_report
from muster_tainter.faults.record.node_record import ANNOTATION, highest_closed
from muster_tainter.policy.file import parse_policy

NOW = 1_800_000_000.0
POLICY = parse_policy("rules: [{name: hw, match: {class: reboot}, action: taint}]")
FORGED = (OCCURRENCE_GAP + 2, 2**31, 2**53, 2**53 + 1, 2**63 - 1)
replace = msgspec.structs.replace


def settle(node: Node, health: NodeHealth) -> tuple[Node, Decision]:
    """The node once everything is written, and the first decision."""
    first = decision = decide(node, health, POLICY, NOW)
    for _ in range(4):
        if not decision.writes:
            return node, first
        node = decision.applied(node)
        decision = decide(node, health, POLICY, NOW)
    raise AssertionError(f"it never settles: {decision}")


def tainted(node: Node) -> bool:
    return any(taint.key == "muster.dev/faulty" for taint in node.spec.taints)


def reasons(decision: Decision) -> set[str]:
    return {notice.reason for notice in decision.notices}


def cleared(node: Node, health: NodeHealth) -> NodeHealth:
    """As `muster clear` leaves it."""
    entries = clear_entries(health, recall_record(node), None, None, "ada", "2026-01-02T00:00:00Z")
    return replace(health, spec=replace(health.spec, clear=entries))


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("later", [1, 2, 7, 2**53 + 2])
def test_a_forged_number_and_a_clear_do_not_hide_what_is_reported_later(make: Any, forged: int, later: int) -> None:
    poisoned = make.health(make.finding(occurrence=forged))
    node, decision = settle(make.node(), poisoned)
    assert tainted(node)
    assert "OccurrenceRefused" in reasons(decision)
    with_clear = cleared(node, poisoned)
    node, _ = settle(node, with_clear)
    assert not tainted(node), "a person's clear works as ever"
    honest = replace(with_clear, status=make.health().status)
    node, _ = settle(node, honest)
    for reason in ("Xid79", "Xid95"):
        again = replace(with_clear, status=make.health(make.finding(reason, later)).status)
        back, _ = settle(node, again)
        assert tainted(back) or later in (forged - 1, forged)
        freed, _ = settle(back, cleared(back, again))
        assert not tainted(freed), "and it can be cleared"


def test_an_honest_agent_that_takes_over_an_open_forged_fault_can_be_cleared(make: Any) -> None:
    node, _ = settle(make.node(), make.health(make.finding(occurrence=2**53)))
    honest = make.health(make.finding(occurrence=3))
    node, _ = settle(node, honest)
    assert [fault.occurrence for fault in recall_record(node).open] == [3]
    node, _ = settle(node, cleared(node, honest))
    assert not tainted(node)


def test_a_number_that_the_agent_calls_cleared_hides_nothing(make: Any) -> None:
    over = make.cleared(occurrence=2**53)
    node, _ = settle(make.node(), make.health(make.finding(occurrence=3), cleared=(over,)))
    assert tainted(node)


def test_a_poisoned_record_gives_a_new_nodehealth_no_poisoned_numbers(make: Any) -> None:
    closed = [
        {"check": "dmesg", "component": "gpu/0", "reason": "Xid79", "occurrence": 2**53, "how": "person"},
        {"check": "dmesg", "component": "gpu/1", "reason": "Xid79", "occurrence": 8, "how": "person"},
    ]
    node = make.node(**{ANNOTATION: msgspec.json.encode({"closed": closed}).decode()})
    assert [entry.occurrence for entry in highest_closed(recall_record(node))] == [8]


def test_numbers_that_rise_as_an_agent_counts_are_no_jump(make: Any) -> None:
    node, decision = settle(make.node(), make.health(make.finding(occurrence=900_000)))
    assert "OccurrenceRefused" not in reasons(decision)
    _, decision = settle(node, make.health(make.finding(occurrence=1_800_000)))
    assert "OccurrenceRefused" not in reasons(decision)


def nonsense(make: Any) -> dict[str, ReportedCheck]:
    bad = make.finding("Xid95", component="gpu/0000:5e:00.0")
    return {
        "occurrence": ReportedCheck(name="x", verdict="FAIL", findings=(replace(bad, occurrence=-1),)),
        "component": ReportedCheck(name="x", verdict="FAIL", findings=(replace(bad, component=""),)),
        "wildcard": ReportedCheck(name="x", verdict="FAIL", findings=(replace(bad, component="*"),)),
        "finding's verdict": ReportedCheck(name="x", verdict="FAIL", findings=(replace(bad, verdict="BROKEN"),)),
        "class": ReportedCheck(name="x", verdict="FAIL", findings=(replace(bad, fault_class="explode"),)),
        "verdict": ReportedCheck(name="x", verdict="BROKEN"),
        "name": ReportedCheck(name="", verdict="FAIL", findings=(bad,)),
        "reserved name": ReportedCheck(name="muster", verdict="FAIL", findings=(bad,)),
        "duplicate": ReportedCheck(name="dmesg", verdict="PASS"),
        "cleared": ReportedCheck(name="x", verdict="PASS", cleared=(make.cleared(occurrence=0),)),
    }


@pytest.mark.parametrize(
    "part",
    [
        *("occurrence", "component", "wildcard", "finding's verdict", "class", "verdict"),
        *("name", "reserved name", "duplicate", "cleared"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_part_that_makes_no_sense_hides_no_failure_in_the_rest(make: Any, part: str, first: bool) -> None:
    failing = make.health(make.finding())
    checks = [*failing.status.checks]
    checks.insert(0 if first else 1, nonsense(make)[part])
    health = replace(failing, status=replace(failing.status, checks=tuple(checks)))
    node, decision = settle(make.node(), health)
    assert tainted(node)
    assert "HealthUnreadable" in reasons(decision)
    assert read_report(health).error
    quiet = make.health(boot="boot-2", cleared=(make.cleared(),))
    held = replace(quiet, status=replace(quiet.status, checks=(*quiet.status.checks, nonsense(make)["occurrence"])))
    node, _ = settle(node, held)
    assert tainted(node), "such a report releases nothing"
    node, _ = settle(node, quiet)
    assert not tainted(node)


def test_a_clear_of_all_that_there_will_ever_be_is_not_taken_at_its_word(make: Any) -> None:
    clear = ClearEntry(check="dmesg", component="*", occurrence=2**53, by="eve")
    node, _ = settle(make.node(), make.health(make.finding(occurrence=4), clear=(clear,)))
    assert tainted(node)

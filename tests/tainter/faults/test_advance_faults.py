"""Which fields of a fault a report changes, and what closes the fault of a device: one step of the lifecycle."""

from typing import Any

import pytest

from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.decision_context import DecisionContext, DeviceContext
from muster_tainter.faults.lifecycle import FaultStep, advance_faults, lost_fault
from muster_tainter.faults.node_report import NodeReport
from muster_tainter.faults.occurrence import REST
from muster_tainter.faults.record.node_record import DeviceStage, Fault, FlapPenalty, NodeRecord, OurTaint
from muster_tainter.policy.file import parse_policy

NOON = 1_800_000_000.0
AT_NOON = "2027-01-15T08:00:00Z"
GPU = "gpu/0000:3b:00.0"
KEY = ("dmesg", GPU, "Xid79")
POLICY = parse_policy(
    """
rules:
  - {name: minor, match: {verdict: WARN}, action: ignore}
  - {name: fleet, match: {correlated: 1}, action: event}
  - {name: hw, action: taint, closeOn: [driver], holdDown: 1s}
"""
)


def finding(occurrence: int = 1, **fields: Any) -> ReportedFinding:
    values: dict[str, Any] = {"component": GPU, "reason": "Xid79", "verdict": "FAIL", "fault_class": "reset"} | fields
    return ReportedFinding(occurrence=occurrence, **values)


def fault(**fields: Any) -> Fault:
    values: dict[str, Any] = {
        "check": "dmesg", "component": GPU, "reason": "Xid79", "occurrence": 1, "verdict": "FAIL",
        "fault_class": "reset", "rule": "hw", "since": AT_NOON, "boot": "one",
    } | fields  # fmt: skip
    return Fault(**values)


def report(*findings: ReportedFinding, boot: str = "one", **fields: Any) -> NodeReport:
    by_key = {("dmesg", each.component, each.reason): each for each in findings}
    return NodeReport(known=True, verdict="FAIL", boot=boot, findings=by_key, looked=frozenset(["dmesg"]), **fields)


def advance(
    opened: Fault | None, reported: NodeReport, context: DecisionContext | None = None, **record: Any
) -> tuple[NodeRecord, list[FaultStep]]:
    memory = NodeRecord(open=() if opened is None else (opened,), **record)
    memory, changes = advance_faults(memory, reported, POLICY, NOON, {}, context or DecisionContext())
    return memory, [change.step for change in changes]


def test_a_fault_without_other_nodes_or_a_first_sign_has_none() -> None:
    memory, steps = advance(None, report(finding()))
    assert steps == [FaultStep.OPENED]
    [opened] = memory.open
    assert (opened.rule, opened.others, opened.incident, opened.first_seen) == ("hw", 0, "", "")


def test_the_first_sign_is_kept_in_whole_seconds() -> None:
    memory, _ = advance(None, report(finding(first_seen="2027-01-15T07:59:58.700Z")))
    assert memory.open[0].first_seen == rfc3339_whole(NOON - 1.3)


def test_an_open_fault_without_other_nodes_keeps_its_rule() -> None:
    assert advance(fault(), report(finding()))[0].open == (fault(),)


REST_OF_CHECK = fault(component=REST, reason=REST, rest=3)


@pytest.mark.parametrize(
    ("opened", "found"),
    [
        pytest.param(fault(), finding(), id="seen again"),
        pytest.param(fault(), finding(verdict="WARN"), id="milder than its rule"),
        pytest.param(REST_OF_CHECK, finding(occurrence=0), id="one of those that were only counted"),
        pytest.param(fault(boot=""), None, id="opened before the first boot was known"),
    ],
)
def test_a_fault_that_stays_open_has_the_boot_in_which_it_was_seen_last(
    opened: Fault, found: ReportedFinding | None
) -> None:
    findings = [] if found is None else [found]
    for boot in ("one", "two"):
        memory, _ = advance(opened, report(*findings, boot=boot))
        assert [each.boot for each in memory.open if each.key == opened.key] == [boot]
    memory, _ = advance(opened, report(*findings, boot=""))
    assert [each.boot for each in memory.open if each.key == opened.key] == [opened.boot]


@pytest.mark.parametrize("found", [None, finding(verdict="UNKNOWN"), finding(occurrence=0)])
def test_a_fault_that_is_not_seen_keeps_its_boot(found: ReportedFinding | None) -> None:
    memory, _ = advance(fault(), report(*([] if found is None else [found]), boot="two"))
    assert memory.open == (fault(),)


@pytest.mark.parametrize(
    ("stage", "component", "closes"),
    [
        (DeviceStage.ALONE, GPU, True),
        (DeviceStage.WANTED, GPU, True),
        (DeviceStage.ALONE, "gpu/0000:86:00.0", False),
        ("", GPU, False),
    ],
)
def test_who_deletes_a_device_s_rule_closes_the_fault_of_that_device_only(
    stage: str, component: str, closes: bool
) -> None:
    opened = fault(device=stage)
    context = DecisionContext(devices=DeviceContext(released={component: "ann"}))
    memory, steps = advance(opened, report(finding()), context)
    assert [(each.how, each.by) for each in memory.closed] == ([("person", "ann")] if closes else [])
    assert steps == ([FaultStep.CLOSED] if closes else [])


@pytest.mark.parametrize(("flaps", "step"), [(1.0, FaultStep.OVER), (0.99, FaultStep.CLOSED)])
def test_a_hold_down_below_a_second_is_none(flaps: float, step: FaultStep) -> None:
    over = ClearedFault(component=GPU, reason="Xid79", occurrence=1, how="driver", at=AT_NOON)
    penalty = {"dmesg": FlapPenalty(n=flaps, at=AT_NOON)}
    _, steps = advance(fault(), report(cleared={KEY: (over,)}), penalty=penalty)
    assert steps == [step]


@pytest.mark.parametrize(("ahead_s", "held_from_s"), [(1, 1), (2, 0)])
def test_a_hold_down_begins_anew_only_if_the_clock_was_set_back_by_more_than_a_second(
    ahead_s: float, held_from_s: float
) -> None:
    held = fault(over=rfc3339_whole(NOON + ahead_s), how="driver")
    penalty = {"dmesg": FlapPenalty(n=5.0, at=AT_NOON)}
    memory, _ = advance(held, report(), penalty=penalty)
    assert [each.over for each in memory.open] == [rfc3339_whole(NOON + held_from_s)]


@pytest.mark.parametrize("message", ["", "XID cleared"])
def test_the_word_of_the_agent_that_closes_a_fault_is_kept(message: str) -> None:
    over = ClearedFault(component=GPU, reason="Xid79", occurrence=1, how="driver", at=AT_NOON, message=message)
    memory, _ = advance(fault(), report(cleared={KEY: (over,)}))
    assert [(each.how, each.by) for each in memory.closed] == [("driver", message or "agent")]


def test_a_flap_keeps_the_penalties_of_other_checks_until_they_have_decayed() -> None:
    over = ClearedFault(component=GPU, reason="Xid79", occurrence=1, how="driver", at=AT_NOON)
    fresh, old = FlapPenalty(n=1.0, at=AT_NOON), FlapPenalty(n=1.0, at=rfc3339_whole(NOON - 30 * 86_400))
    memory, _ = advance(fault(), report(cleared={KEY: (over,)}), penalty={"fresh": fresh, "old": old})
    assert memory.penalty == {"fresh": fresh, "dmesg": FlapPenalty(n=1.0, at=AT_NOON)}


@pytest.mark.parametrize(("verdict", "closes"), [("WARN", True), ("FAIL", False)])
def test_counted_faults_are_over_after_a_boot_without_findings_that_open_faults(verdict: str, closes: bool) -> None:
    policy = parse_policy(
        """
rules:
  - {name: minor, match: {verdict: WARN}, action: ignore}
  - {name: hw, match: {verdict: FAIL}, action: taint, closeOn: [boot], holdDown: 0s}
"""
    )
    memory = NodeRecord(open=(REST_OF_CHECK,))
    memory, changes = advance_faults(memory, report(finding(verdict=verdict), boot="two"), policy, NOON, {})
    assert [change.step for change in changes] == ([FaultStep.CLOSED] if closes else [])


def test_a_finding_that_no_rule_matches_is_none_that_opens_faults() -> None:
    policy = parse_policy(
        "rules: [{name: hw, match: {check: [dmesg], class: [reset]}, action: taint, closeOn: [boot]}]"
    )
    memory = NodeRecord(open=(REST_OF_CHECK,))
    reported = report(finding(fault_class="contact"), boot="two")
    _, changes = advance_faults(memory, reported, policy, NOON, {})
    assert [change.step for change in changes] == [FaultStep.CLOSED]


def test_a_lost_taint_s_fault_counts_from_one_even_before_the_clock_is_set() -> None:
    taint = OurTaint(key="muster.dev/faulty", effect="NoSchedule", value="true")
    assert [lost_fault(taint, "one", now).occurrence for now in (0.0, 1.0, NOON)] == [1, 1, int(NOON)]

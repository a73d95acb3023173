"""More findings than an agent ever reports: the gravest open faults, none is closed, and the log stays short."""

import logging
from typing import Any

import msgspec
import pytest

from muster_kube.nodehealth import NodeHealth, ReportedCheck, ReportedFinding
from muster_tainter.faults.desired_state import decide, recall_record
from muster_tainter.faults.logs.audit_log import log_transitions
from muster_tainter.faults.node_report import FINDINGS_LIMIT, read_report
from muster_tainter.policy.file import load_policy

NOW = 1_800_000_000.0
POLICY = load_policy(None)
MILD = ReportedFinding(component="", reason="R", verdict="FAIL", fault_class="restart-app", occurrence=1)


def with_findings(health: NodeHealth, count: int, *more: ReportedFinding) -> NodeHealth:
    """``count`` in all: mild ones of made-up checks, and ``more`` of the check dmesg, which comes first."""
    mild = [msgspec.structs.replace(MILD, component=f"d/{number}") for number in range(count - len(more))]
    checks = [
        ReportedCheck(name=f"c{number}", verdict="FAIL", findings=tuple(mild[first : first + 64]))
        for number, first in enumerate(range(0, len(mild), 64))
    ]
    first = ReportedCheck(name="dmesg", verdict="FAIL" if more else "PASS", findings=more)
    status = msgspec.structs.replace(health.status, verdict="FAIL", checks=(first, *checks))
    return msgspec.structs.replace(health, status=status)


@pytest.mark.parametrize(("count", "valid"), [(FINDINGS_LIMIT, True), (FINDINGS_LIMIT + 1, False), (8192, False)])
def test_so_many_are_read_and_more_make_the_report_invalid(make: Any, count: int, *, valid: bool) -> None:
    report = read_report(with_findings(make.health(), count))
    assert len(report.findings or {}) == min(count, FINDINGS_LIMIT)
    assert (report.error == "") is valid


def test_the_gravest_is_not_hidden_by_the_others(make: Any) -> None:
    node = make.node()
    assert not decide(node, with_findings(make.health(), 8192), POLICY, NOW).takes_a_place
    grave = make.finding(reason="Xid79")
    decision = decide(node, with_findings(make.health(), 8192, grave), POLICY, NOW)
    assert decision.takes_a_place
    assert [fault.reason for fault in recall_record(decision.applied(node)).open] == ["Xid79"]


def test_none_is_closed_until_there_are_fewer(make: Any) -> None:
    node = make.node()
    node = decide(node, make.health(make.finding(reason="Xid79")), POLICY, NOW).applied(node)
    booted = make.health(boot="boot-2")
    crowded = decide(node, with_findings(booted, 8192), POLICY, NOW)
    assert ("Xid79", "") in {(fault.reason, fault.over) for fault in recall_record(crowded.applied(node)).open}
    calm = decide(node, booted, POLICY, NOW).applied(node)
    assert "Xid79" not in {fault.reason for fault in recall_record(calm).open if not fault.over}


def test_the_log_says_that_it_leaves_out_some(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_transitions(make.health(), with_findings(make.health(), 8192), NOW)
    findings = [each for each in caplog.records if each.name == "muster_tainter.findings"]
    (rest,) = (each for each in caplog.records if each.levelno == logging.WARNING)
    assert len(findings) == FINDINGS_LIMIT
    assert str(FINDINGS_LIMIT) in rest.getMessage()

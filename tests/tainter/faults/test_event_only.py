"""Findings that make an Event and nothing else."""

from typing import Any

import msgspec

from muster_kube.nodehealth import ReportedFinding
from muster_tainter.faults.event_only import event_only_notices
from muster_tainter.faults.node_report import NodeReport, read_report
from muster_tainter.policy.file import load_policy
from muster_tainter.policy.rules import SILENT

POLICY = load_policy(None)


def test_findings_that_do_nothing_else_are_said(make: Any) -> None:
    health = make.health(make.finding("Xid13", 1, verdict="WARN"), make.finding("Xid31", 2, fault_class="restart-app"))
    health = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, verdict="FAIL"))
    told = event_only_notices(read_report(health), POLICY)
    assert {key[2]: (number, notice.reason) for key, (number, notice) in told.items()} == {
        "Xid13": (1, "HealthWarning"),
        "Xid31": (2, "HealthFailure"),
    }
    assert event_only_notices(read_report(make.health(make.finding())), POLICY) == {}


def test_a_fault_that_a_rule_opens_has_events_of_its_own() -> None:
    silent = ReportedFinding(component="host", reason="AgentSilent", verdict="FAIL")
    assert event_only_notices(NodeReport(known=True, findings={SILENT: silent}), POLICY) == {}

"""Findings that make an Event and nothing else."""

from typing import Any

import msgspec

from muster_tainter.faults.event_only import event_only_notices
from muster_tainter.faults.node_report import read_report
from muster_tainter.policy.file import load_policy

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

"""Nodes and NodeHealths as values, for tests of the pure cores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.nodehealth import (
    ClearedFault,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
)

FAULTY = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")


@dataclass(frozen=True)
class Make:
    """Short ways to write objects down."""

    faulty: Taint = FAULTY

    def node(self, *taints: Taint, labels: dict[str, str] | None = None, **annotations: str) -> Node:
        return Node(
            metadata=Metadata(name="n1", resource_version="1", labels=labels or {}, annotations=annotations),
            spec=NodeSpec(taints=taints),
        )

    def finding(self, reason: str = "Xid79", occurrence: int = 1, **fields: Any) -> ReportedFinding:
        values: dict[str, Any] = {
            "component": "gpu/0000:3b:00.0",
            "verdict": "FAIL",
            "fault_class": "reboot",
            "message": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            "first_seen": "2026-01-01T00:00:00.000Z",
        } | fields
        return ReportedFinding(reason=reason, occurrence=occurrence, **values)

    def cleared(self, how: str = "driver", occurrence: int = 1, reason: str = "Xid79", **fields: Any) -> ClearedFault:
        values = {"component": "gpu/0000:3b:00.0", "at": "2026-01-01T01:00:00Z"} | fields
        return ClearedFault(reason=reason, occurrence=occurrence, how=how, **values)

    def health(
        self,
        *findings: ReportedFinding,
        boot: str = "boot-1",
        cleared: tuple[ClearedFault, ...] = (),
        clear: tuple[ClearEntry, ...] = (),
        verdict: str | None = None,
        more: int = 0,
        observed: str = "",
    ) -> NodeHealth:
        if verdict is None:
            order = ["FAIL", "WARN", "UNKNOWN", "PASS"]
            verdict = min((f.verdict for f in findings), key=order.index, default="PASS")
        check = ReportedCheck(name="dmesg", verdict=verdict, findings=findings, cleared=cleared, more_findings=more)
        return NodeHealth(
            metadata=Metadata(name="n1", resource_version="1"),
            spec=NodeHealthSpec(clear=clear),
            status=NodeHealthStatus(verdict=verdict, checks=(check,), boot_id=boot, observed_at=observed),
        )


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def policy_of() -> Callable[[str], Any]:
    from muster_tainter.policy.file import parse_policy

    return parse_policy

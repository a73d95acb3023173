"""The NodeHealth status of the node, and which of its changes are worth a write."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from muster_agent.findings.ledger import REASON_LIMIT
from muster_agent.findings.stored_ledger import ClearedFinding
from muster_checks.base.vocabulary import Finding, Verdict, severity, shorten, worst
from muster_kube import nodehealth
from muster_kube.api.times import rfc3339

FAILING_LIMIT = 1024  # characters; this and the other limits here are those of NodeHealth's schema
MEASUREMENTS_LIMIT = 16
_NO_CANARY = nodehealth.CanaryReport()


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """One check as published.

    reason, message: those of the worst finding, or why the verdict is UNKNOWN
    last_change:     time of the last change of ``verdict``, seconds since the epoch
    """

    name: str
    verdict: Verdict
    reason: str = ""
    message: str = ""
    last_change: float = 0.0
    findings: tuple[Finding, ...] = ()
    more_findings: int = 0
    over: tuple[ClearedFinding, ...] = ()
    last_occurrence: int = 0


def compose_status(
    checks: Sequence[CheckView],
    *,
    boot_id: str,
    agent: nodehealth.AgentIdentity,
    idle_since: str = "",
    due: tuple[str, ...] = (),
    answers: tuple[nodehealth.RequestAnswer, ...] = (),
    canary: nodehealth.CanaryReport = _NO_CANARY,
    address_of: Callable[[str], str] = lambda _: "",
) -> nodehealth.NodeHealthStatus:
    """The complete status without ``observedAt``. boot_id: the boot for which the verdicts are complete; address_of:
    the PCI address of a component that its name does not say."""
    bad = sorted((check for check in checks if severity(check.verdict) > severity(Verdict.PASS)), key=_worst_first)
    return nodehealth.NodeHealthStatus(
        verdict=worst([check.verdict for check in checks], Verdict.UNKNOWN).value,
        failing=_clip(",".join(check.name for check in bad), FAILING_LIMIT),
        message=shorten(bad[0].message) if bad else "",
        checks=tuple(_check(check, address_of) for check in sorted(checks, key=lambda check: check.name)),
        boot_id=boot_id,
        agent=agent,
        idle_since=idle_since,
        due=due,
        answers=answers,
        canary=canary,
    )


def change_signature(status: nodehealth.NodeHealthStatus) -> object:
    """Equal for two statuses that differ only in counts, times and texts, which are written with the next change."""
    return (
        status.verdict,
        status.boot_id,
        status.agent,
        status.idle_since,
        status.due,
        status.canary,
        tuple((answer.id, answer.verdict, answer.finished) for answer in status.answers),
        tuple(
            (
                check.name,
                check.verdict,
                "" if check.findings else check.reason,
                check.more_findings > 0,
                frozenset((f.component, f.reason, f.verdict, f.occurrence) for f in check.findings),
                frozenset((over.component, over.reason, over.occurrence) for over in check.cleared),
            )
            for check in status.checks
        ),
    )


def same_but_for_time(one: nodehealth.NodeHealthStatus, other: nodehealth.NodeHealthStatus) -> bool:
    """True if only ``observedAt`` differs."""
    return msgspec.structs.replace(one, observed_at="") == msgspec.structs.replace(other, observed_at="")


def status_patch(status: nodehealth.NodeHealthStatus, *, resource_version: str = "") -> dict[str, Any]:
    """The JSON merge patch that makes the object's status exactly ``status``.

    A merge patch keeps fields that it does not contain, so empty fields are set to null. With ``resource_version``,
    the API server rejects the write (409) if the object has another version.
    """
    named = msgspec.to_builtins(status)
    body: dict[str, Any] = dict.fromkeys(nodehealth.NodeHealthStatus.__struct_encode_fields__) | named
    body["agent"] = dict.fromkeys(nodehealth.AgentIdentity.__struct_encode_fields__) | msgspec.to_builtins(status.agent)
    if status.canary != _NO_CANARY:
        body["canary"] = dict.fromkeys(nodehealth.CanaryReport.__struct_encode_fields__) | named["canary"]
    body["checks"] = named.get("checks", [])
    for check in body["checks"]:
        for finding in check.get("findings", ()):
            # a 1 is the default and would be omitted, but people need the number to clear the finding
            finding.setdefault("occurrence", 1)
            finding.setdefault("count", 1)
    return _guarded({"status": body}, resource_version)


def claim_patch(pod_uid: str, version: str, *, resource_version: str = "") -> dict[str, Any]:
    """The patch that sets only the agent: the claim of a new agent or, with an empty ``pod_uid``, the release.

    Empty values are null, because Kubernetes 1.20 built with a newer Go validates an empty string as null and rejects
    the write.
    """
    agent = {"podUID": pod_uid or None, "version": version or None}
    return _guarded({"status": {"agent": agent}}, resource_version)


def _guarded(body: dict[str, Any], resource_version: str) -> dict[str, Any]:
    if resource_version:
        body["metadata"] = {"resourceVersion": resource_version}
    return body


def _worst_first(check: CheckView) -> tuple[int, str]:
    return -severity(check.verdict), check.name


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _check(check: CheckView, address_of: Callable[[str], str]) -> nodehealth.ReportedCheck:
    return nodehealth.ReportedCheck(
        name=check.name,
        verdict=check.verdict.value,
        reason=_clip(check.reason, REASON_LIMIT),
        message=shorten(check.message),
        last_change=rfc3339(check.last_change),
        findings=tuple(_finding(finding, address_of(finding.component)) for finding in check.findings),
        more_findings=check.more_findings,
        last_occurrence=check.last_occurrence,
        cleared=tuple(
            nodehealth.ClearedFault(
                component=over.component,
                reason=over.reason,
                occurrence=over.occurrence,
                how=over.how,
                at=rfc3339(over.at),
                message=over.message,
            )
            for over in check.over
        ),
    )


def _finding(finding: Finding, address: str) -> nodehealth.ReportedFinding:
    return nodehealth.ReportedFinding(
        component=finding.component,
        reason=finding.reason,
        verdict=finding.verdict.value,
        message=finding.message,
        fault_class=finding.fault_class.value,
        measurements=tuple(
            nodehealth.ReportedMeasurement(
                name=_clip(m.name, 63), value=m.value, unit=_clip(m.unit, 32), threshold=m.threshold
            )
            for m in finding.measurements[:MEASUREMENTS_LIMIT]
            # JSON has no NaN and no infinity; the API server would reject the whole status
            if math.isfinite(m.value) and (m.threshold is None or math.isfinite(m.threshold))
        ),
        first_seen=rfc3339(finding.first_seen),
        last_seen=rfc3339(finding.last_seen),
        count=finding.count,
        occurrence=finding.occurrence,
        origin=finding.origin.value if finding.origin else "",
        address=address,
    )

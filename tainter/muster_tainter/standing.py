"""Findings that are said and not acted upon: Events for rules with action ``event``. Pure."""

from muster_checks.vocabulary import Verdict, shorten
from muster_tainter.desired import Notice
from muster_tainter.health import FaultKey, Report
from muster_tainter.policy import Policy

_MESSAGE_LIMIT = 900


def said(report: Report, policy: Policy) -> dict[FaultKey, tuple[int, Notice]]:
    """(occurrence, notice) of each finding that the policy only speaks of."""
    result: dict[FaultKey, tuple[int, Notice]] = {}
    for key, finding in (report.findings or {}).items():
        rule = policy.rule_for(key[0], finding.component, finding.reason, finding.verdict, finding.fault_class)
        if rule is None or rule.action != "event":
            continue
        asks = f" [{finding.fault_class}]" if finding.fault_class else ""
        text = f"{key[0]} {finding.component} {finding.reason}: {finding.message}"
        reason = "HealthFailure" if finding.verdict == Verdict.FAIL else "HealthWarning"
        result[key] = finding.occurrence, Notice(reason, shorten(text, _MESSAGE_LIMIT) + asks, "/".join(key))
    return result

"""Findings of rules with action ``event``: one Event for each occurrence, and no other action."""

from muster_checks.base.vocabulary import Verdict, shorten
from muster_kube.api.times import seconds
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.node_report import FaultKey, NodeReport
from muster_tainter.policy.rules import Policy

WARNING_REASON = "HealthWarning"
_MESSAGE_LIMIT = 900
OLD_NEWS_S = 3600.0  # a process that has just started does not report warnings older than an Event's lifetime


def event_only_notices(report: NodeReport, policy: Policy) -> dict[FaultKey, tuple[int, Notice]]:
    """(occurrence, notice) of each finding that the policy only reports."""
    result: dict[FaultKey, tuple[int, Notice]] = {}
    for key, finding in (report.findings or {}).items():
        rule = policy.rule_for(key[0], finding.component, finding.reason, finding.verdict, finding.fault_class)
        if rule is None or rule.action != "event" or rule.opens:  # a fault has Events of its own
            continue
        asks = f" [{finding.fault_class}]" if finding.fault_class else ""
        text = f"{key[0]} {finding.component} {finding.reason}: {finding.message}"
        reason = "HealthFailure" if finding.verdict == Verdict.FAIL else WARNING_REASON
        text = shorten(text, _MESSAGE_LIMIT) + asks
        result[key] = finding.occurrence, Notice(reason, text, "/".join(key), per_finding=True)
    return result


def finding_of(message: str) -> tuple[str, str]:
    """(``CHECK COMPONENT REASON``, the rest) of such a notice's text; empty for another one."""
    head, colon, text = message.partition(": ")
    return (head, text) if colon and head.count(" ") == 2 else ("", "")


class EventOnlyHistory:
    """What this process has reported about each node."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[FaultKey, int]] = {}

    def new_notices(self, node: str, report: NodeReport, policy: Policy, now: float) -> list[Notice]:
        """The new notices; they count as reported from now on. now: seconds since the epoch."""
        found = event_only_notices(report, policy)
        before = self._numbers.get(node, {})
        notices = []
        for key, (occurrence, notice) in found.items():
            finding = report.finding(key)
            fresh = finding is not None and now - seconds(finding.first_seen) < OLD_NEWS_S
            if before.get(key, 0) != occurrence and (fresh or node in self._numbers):
                notices.append(notice)
        numbers = {key: occurrence for key, (occurrence, _) in found.items()}
        if numbers or node in self._numbers:
            self._numbers[node] = numbers
        return notices

    def __contains__(self, node: str) -> bool:
        return node in self._numbers

    def forget(self, node: str) -> None:
        self._numbers.pop(node, None)

    def clear(self) -> None:
        self._numbers.clear()

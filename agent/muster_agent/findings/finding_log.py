"""Logs each change of a finding."""

import logging
from collections.abc import Iterable
from typing import Any

from muster_agent.findings.ledger import Transition, TransitionKind
from muster_checks.base.vocabulary import Verdict, shorten

log = logging.getLogger("muster_agent.findings")

DISOWNED_LOG_LIMIT = 1024  # bytes


def log_transition(node: str, check: str, transition: Transition) -> None:
    """Log one line, with the complete kernel line that caused the change."""
    finding = transition.finding
    bad = transition.step is not TransitionKind.CLEARED
    level = logging.INFO if not bad else logging.ERROR if finding.verdict is Verdict.FAIL else logging.WARNING
    what = f"has {check} {finding.verdict}" if bad else f"no longer has {check} {finding.verdict}"
    fields: dict[str, Any] = {
        "event": transition.step.value,
        "node": node,
        "check": check,
        "verdict": finding.verdict.value,
        "component": finding.component,
        "reason": finding.reason,
        "occurrence": finding.occurrence,
        "class": finding.fault_class.value,
        "origin": finding.origin.value if finding.origin else "",
        "how": transition.how,
    }
    log.log(
        level,
        "node `%s` %s: %s",
        node,
        what,
        transition.line or finding.message,
        extra={"fields": {key: value for key, value in fields.items() if value != ""}},
    )


def log_disowned(check: str, findings: Iterable[str]) -> None:
    """findings: each as one line."""
    log.warning(
        "check %s: the NodeHealth had findings that this agent never made, so somebody else has written it; closed: %s",
        check,
        shorten(", ".join(findings), DISOWNED_LOG_LIMIT),
    )

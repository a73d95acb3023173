"""The tainter's log: one line for each taint set or removed, one JSON line for each transition of a finding.

The JSON lines carry every input of a decision, so that ``muster replay`` can apply another policy to them later.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from muster_kube.api.times import rfc3339_micro
from muster_kube.nodehealth import ClearedFault, ClearEntry, NodeHealth, ReportedCheck, ReportedFinding
from muster_kube.process.logs import LogFormat, LogLevel, configure_logging
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.messages import format_taint
from muster_tainter.faults.node_report import FINDINGS_LIMIT

log = logging.getLogger("muster_tainter.taints")
findings_log = logging.getLogger("muster_tainter.findings")


class _Bare(logging.Formatter):
    """Prints only the message: a finding's transition is JSON in both log formats."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage()


def configure(log_format: LogFormat, level: LogLevel = "info") -> None:
    """Log to standard error. Finding transitions are JSON in any format, and logged at any level, for a replay."""
    configure_logging(log_format, level)
    bare = logging.StreamHandler(sys.stderr)
    bare.setFormatter(_Bare())
    findings_log.handlers[:] = [bare]
    findings_log.propagate = False
    findings_log.setLevel(logging.INFO)


def log_taints(node: str, decision: Decision, *, dry_run: bool) -> None:
    """Uses Konduktor's wording for a tainted node, so that existing log searches still match."""
    would = "would be " if dry_run else ""
    for change in decision.taint_changes:
        what = "tainted" if change.added else "untainted"
        rule = f" rule {change.rule}" if change.rule else ""
        log.log(
            logging.WARNING if change.added else logging.INFO,
            "Node %s %s%s: %s%s: %s",
            node,
            would,
            what,
            format_taint(change.taint),
            rule,
            change.why,
            extra={
                "json_fields": {
                    "event": what,
                    "node": node,
                    "taint": format_taint(change.taint),
                    "rule": change.rule,
                    "why": change.why,
                    "dryRun": dry_run,
                }
            },
        )


def transitions(old: NodeHealth | None, new: NodeHealth) -> Iterator[dict[str, Any]]:
    """The differences between two reports of a node: findings that appeared, changed verdict or occurrence, or
    disappeared; cleared findings; a new boot. Changed counts, times and messages alone are not transitions."""
    node = new.metadata.name
    status = new.status
    base = {"node": node, "bootID": status.boot_id, "observedAt": status.observed_at}
    before = {check.name: check for check in old.status.checks} if old is not None else {}
    if old is not None and old.status.boot_id != status.boot_id:
        yield base | {"event": "boot", "from": old.status.boot_id}
    for check in status.checks:
        known = before.pop(check.name, None)
        yield from (base | change for change in _of_check(known, check))
    for check in before.values():
        yield from (base | change for change in _of_check(check, ReportedCheck(name=check.name, verdict="")))
    if old is not None:
        for clear in new.spec.clear:
            if clear not in old.spec.clear:
                yield base | {"event": "clear", **_closing(clear)}


def _of_check(old: ReportedCheck | None, new: ReportedCheck) -> Iterator[dict[str, Any]]:
    had = {(f.component, f.reason): f for f in old.findings} if old is not None else {}
    for finding in new.findings:
        known = had.pop((finding.component, finding.reason), None)
        if known is None or _state_of(known) != _state_of(finding):
            came = {"from": known.verdict if known is not None else None, "to": finding.verdict}
            yield {"event": "finding", "check": new.name, **came, **msgspec.to_builtins(finding)}
    for finding in had.values():
        yield {
            "event": "finding",
            "check": new.name,
            "from": finding.verdict,
            "to": None,
            **msgspec.to_builtins(finding),
        }
    before = old.cleared if old is not None else ()
    for over in new.cleared:
        if over not in before:
            yield {"event": "cleared", "check": new.name, **_closing(over)}
    if old is not None and old.verdict != new.verdict:
        yield {"event": "check", "check": new.name, "from": old.verdict, "to": new.verdict}


def _closing(word: ClearEntry | ClearedFault) -> dict[str, Any]:
    """Renames ``at``, which is the time of the log line itself."""
    fields = msgspec.to_builtins(word)
    return {"closedAt" if name == "at" else name: value for name, value in fields.items()}


def _state_of(finding: ReportedFinding) -> tuple[str, str, int]:
    return finding.verdict, finding.fault_class, finding.occurrence


def log_initial_states(healths: Iterable[NodeHealth], at: float) -> None:
    """A replay begins with what a new leader finds."""
    for health in healths:
        if health.status.verdict not in ("", "PASS"):
            log_transitions(None, health, at)


def log_transitions(old: NodeHealth | None, new: NodeHealth, at: float) -> None:
    """As many as a report may have findings."""
    changes = transitions(old, new)
    for change in islice(changes, FINDINGS_LIMIT):
        findings_log.info("%s", json.dumps({"at": rfc3339_micro(at), **change}, ensure_ascii=False))
    if next(changes, None) is not None:
        log.warning(
            "node %s: a report has more than %d changes; the rest is not logged", new.metadata.name, FINDINGS_LIMIT
        )

"""Reads the finding transitions that :mod:`muster_tainter.faults.logs.audit_log` wrote, and rebuilds the NodeHealths.

Lines of one transition share the node and time, so a NodeHealth is complete when the next transition's first line
arrives. A new leader logs the current state again; reading it twice changes nothing.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from muster_checks.base.vocabulary import Verdict, worst
from muster_kube.api.times import seconds
from muster_kube.nodehealth import (
    CLEAR_LIMIT,
    CLEARED_LIMIT,
    ClearedFault,
    ClearEntry,
    Metadata,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
)

EVENTS = frozenset({"finding", "cleared", "check", "boot", "clear"})
_LINE = b'{"at":'
_CHECKS_LIMIT = 64  # per node: the names come from an untrusted file
_VERDICTS = frozenset(Verdict)
_decoder = msgspec.json.Decoder(dict[str, Any])


class BadLine(ValueError):
    """The line looks like a transition but is invalid."""


def read_transition(raw: bytes) -> dict[str, Any] | None:
    """The transition in a line of a tainter's log, after any prefix of the container runtime; None for other lines.

    Raises BadLine.
    """
    start = raw.find(_LINE)
    if start < 0:
        return None
    try:
        fields = _decoder.decode(raw[start:])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadLine(str(error)) from error
    if fields.get("event") not in EVENTS:
        return None
    node, at = fields.get("node"), fields.get("at")
    if not isinstance(node, str) or not node or not isinstance(at, str) or not seconds(at):
        raise BadLine("no node or no time")
    return fields


class AuditLogReader:
    """Rebuilds NodeHealths from transitions in time order. ``bad``: number of invalid transitions."""

    def __init__(self) -> None:
        self.bad = 0
        self._nodes: dict[str, _NodeTranscript] = {}
        self._open: tuple[str, str] | None = None

    def take(self, fields: dict[str, Any]) -> Iterator[tuple[float, NodeHealth]]:
        """Yields the NodeHealths that this line completes."""
        key = (fields["node"], fields["at"])
        if key != self._open:
            yield from self.finish()
            self._open = key
        transcript = self._nodes.setdefault(fields["node"], _NodeTranscript(fields["node"]))
        try:
            transcript.take(fields)
        except (msgspec.ValidationError, KeyError, BadLine):
            self.bad += 1

    def finish(self) -> Iterator[tuple[float, NodeHealth]]:
        if self._open is not None:
            node, at = self._open
            self._open = None
            yield seconds(at), self._nodes[node].health()


class _NodeTranscript:
    def __init__(self, name: str) -> None:
        self._name = name
        self._boot = ""
        self._verdicts: dict[str, str] = {}
        self._findings: dict[str, dict[tuple[str, str], ReportedFinding]] = {}
        self._cleared: dict[str, tuple[ClearedFault, ...]] = {}
        self._clears: tuple[ClearEntry, ...] = ()

    def take(self, fields: dict[str, Any]) -> None:
        """Raises ValidationError, KeyError, BadLine."""
        boot = fields.get("bootID")
        event = fields["event"]
        closing = {**fields, "at": fields.get("closedAt", fields["at"])}
        if event == "clear":
            self._clears = (*self._clears, msgspec.convert(closing, ClearEntry))[-CLEAR_LIMIT:]
            return
        if isinstance(boot, str):
            self._boot = boot
        if event == "boot":
            return
        check = fields["check"]
        if not isinstance(check, str) or not check or (check not in self._verdicts and self._full()):
            raise BadLine("no check, or too many checks")
        if event == "check":
            self._verdicts[check] = str(fields["to"] or "")
            return
        self._verdicts.setdefault(check, "")
        if event == "cleared":
            over = msgspec.convert(closing, ClearedFault)
            self._cleared[check] = (*self._cleared.get(check, ()), over)[-CLEARED_LIMIT:]
            return
        finding = msgspec.convert({k: v for k, v in fields.items() if k not in ("from", "to")}, ReportedFinding)
        known = self._findings.setdefault(check, {})
        if fields["to"] is None:
            known.pop((finding.component, finding.reason), None)
        else:
            known[finding.component, finding.reason] = finding

    def _full(self) -> bool:
        return len(self._verdicts) >= _CHECKS_LIMIT

    def health(self) -> NodeHealth:
        checks = []
        for name, reported in sorted(self._verdicts.items()):
            findings = tuple(self._findings.get(name, {}).values())
            verdict = _worst([reported, *(finding.verdict for finding in findings)])
            checks.append(
                ReportedCheck(name=name, verdict=verdict, findings=findings, cleared=self._cleared.get(name, ()))
            )
        return NodeHealth(
            metadata=Metadata(name=self._name),
            spec=NodeHealthSpec(clear=self._clears),
            status=NodeHealthStatus(
                verdict=_worst([check.verdict for check in checks]), checks=tuple(checks), boot_id=self._boot
            ),
        )


def _worst(verdicts: list[str]) -> str:
    return worst([Verdict(verdict) for verdict in verdicts if verdict in _VERDICTS]).value

"""Turns signs in log lines into findings of nodes: the counterpart of an agent's ledger, without persistent state.

Limited to as many findings per node and check as a NodeHealth; a failure replaces a warning.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Origin, Verdict, severity, shorten
from muster_kube.api.times import rfc3339, rfc3339_micro, seconds
from muster_kube.nodehealth import FINDINGS_LIMIT, ClearedFault, ReportedFinding, ReportedMeasurement
from muster_tainter.faults.logs.audit_log import findings_log
from muster_tainter.faults.record.node_record import REST, NodeRecord
from muster_tainter.sources.occurrences import firing_number, last_ended

NAME_LIMIT = 128  # characters of a component and of a reason, as in NodeHealth's schema
COUNTS_EVERY_S = 60.0  # a changed count alone is reported at most this often
QUIET_S = 3600.0  # quiet time of a warning that is not in the catalogue

Key = tuple[str, str]  # component, reason
Found = Callable[[str, str, ReportedFinding], None]
Over = Callable[[str, str, ClearedFault], None]


@dataclass
class _Open:
    """sent_at: when it was last reported (in the signs' time); quiet_s: quiet time until it closes; 0: never."""

    finding: ReportedFinding
    sent_at: float
    quiet_s: float = 0.0


@dataclass
class FindingTracker:
    """Findings of one check. memory: returns a node's record; found, over: called with findings and their ends."""

    check: str
    memory: Callable[[str], NodeRecord]
    found: Found
    over: Over
    forgotten: int = 0
    nodes: dict[str, dict[Key, _Open]] = field(default_factory=dict)

    def take(self, node: str, sign: Sign, *, quiet_s: float = 0.0) -> bool:
        """False if the sign belongs to an occurrence that has ended."""
        key = (sign.component[:NAME_LIMIT], sign.reason[:NAME_LIMIT])
        fault = (self.check, *key)
        memory = self.memory(node)
        opened = self.nodes.get(node, {})
        known = opened.get(key)
        number = firing_number(fault, int(sign.at * 1000), known.finding.occurrence if known else 0, memory)
        if not number:
            return False
        if known is not None and known.finding.occurrence != number:
            known = None  # the earlier occurrence has ended
        if known is None and not self._make_room(node, opened, sign):
            return True
        finding = _first(key, sign, number) if known is None else _joined(known.finding, sign)
        now = _Open(finding, sign.at, quiet_s if sign.verdict is Verdict.WARN else 0.0)
        if known is not None and known.quiet_s == 0.0:
            now.quiet_s = 0.0
        before = None if known is None else known.finding
        self.nodes.setdefault(node, opened)[key] = now
        if before is None or (before.verdict, before.fault_class) != (finding.verdict, finding.fault_class):
            self._log_transition(node, before, finding)
        elif known is not None and sign.at < known.sent_at + COUNTS_EVERY_S:
            now.sent_at = known.sent_at
            return True
        self.found(node, self.check, finding)
        return True

    def adopt(self, node: str, now: float) -> None:
        """Take over warnings that an earlier leader reported. The time of their last line is unknown, so their quiet
        time starts ``now``; otherwise they would never close."""
        for fault in self.memory(node).open:
            if fault.check != self.check or fault.verdict != Verdict.WARN or fault.over or REST in fault.key:
                continue
            finding = ReportedFinding(
                component=fault.component,
                reason=fault.reason,
                verdict=fault.verdict,
                message=fault.message,
                fault_class=fault.fault_class,
                first_seen=fault.first_seen or fault.since,
                last_seen=rfc3339(now),
                occurrence=fault.occurrence,
                origin=fault.origin,
            )
            opened = self.nodes.setdefault(node, {})
            opened.setdefault((fault.component, fault.reason), _Open(finding, now, QUIET_S))

    def _make_room(self, node: str, opened: dict[Key, _Open], sign: Sign) -> bool:
        if len(opened) < FINDINGS_LIMIT or (sign.component[:NAME_LIMIT], sign.reason[:NAME_LIMIT]) in opened:
            return True
        self.forgotten += 1
        if sign.verdict is not Verdict.FAIL:
            return False
        warnings = [key for key, one in opened.items() if one.finding.verdict != Verdict.FAIL]
        if not warnings:
            return False
        oldest = min(warnings, key=lambda key: opened[key].finding.last_seen)
        self._end(node, oldest, "source", seconds(opened[oldest].finding.last_seen), "dropped for lack of room")
        return True

    def clear(self, node: str, clear: AllClear) -> None:
        """Findings were cleared, including those that an earlier leader reported."""
        opened = self.nodes.get(node, {})
        named = {
            key: (one.finding.occurrence, one.finding.verdict, one.finding.fault_class) for key, one in opened.items()
        }
        for fault in self.memory(node).open:
            if fault.check == self.check and REST not in fault.key and not fault.over:
                named.setdefault((fault.component, fault.reason), (fault.occurrence, fault.verdict, fault.fault_class))
        for (component, reason), (occurrence, verdict, fault_class) in named.items():
            if (
                component != clear.component[:NAME_LIMIT]
                or (clear.reasons and reason not in clear.reasons)
                or (clear.classes and FaultClass(fault_class) not in clear.classes)
                # silence proves nothing about a failure
                or (clear.how == "quiet" and verdict == Verdict.FAIL)
            ):
                continue
            self._end(node, (component, reason), clear.how, clear.at, clear.line, occurrence)

    def tick(self, now: float) -> None:
        """Close warnings after their quiet time. now: up to when everything has been read."""
        for node, opened in list(self.nodes.items()):
            for key, one in list(opened.items()):
                due = seconds(one.finding.last_seen) + one.quiet_s
                if one.quiet_s and due <= now:
                    self._end(node, key, "quiet", due, "")

    def settle(self, forget: Callable[[str, Key], None]) -> None:
        """Drop findings that ended elsewhere (by a person, a proof); ``forget``: called for each."""
        for node, opened in list(self.nodes.items()):
            memory = self.memory(node)
            for key, one in list(opened.items()):
                number, at_ms = last_ended((self.check, *key), memory)
                if number >= one.finding.occurrence:
                    self._end(node, key, "source", at_ms / 1000, "the fault was closed")
                    forget(node, key)

    def drop(self, node: str) -> None:
        """The node was removed."""
        self.nodes.pop(node, None)

    def _end(self, node: str, key: Key, how: str, at: float, line: str, occurrence: int = 0) -> None:
        opened = self.nodes.get(node, {})
        one = opened.pop(key, None)
        if not opened:
            self.nodes.pop(node, None)
        component, reason = key
        cleared = ClearedFault(
            component=component,
            reason=reason,
            occurrence=one.finding.occurrence if one else occurrence,
            how=how,
            at=rfc3339(at),
            message=shorten(line),
        )
        event = {"event": "cleared", "check": self.check, **msgspec.to_builtins(cleared)}
        _log({"at": rfc3339_micro(at), "node": node, **event})
        self.over(node, self.check, cleared)

    def _log_transition(self, node: str, before: ReportedFinding | None, finding: ReportedFinding) -> None:
        came = {"from": before.verdict if before else None, "to": finding.verdict}
        event = {"event": "finding", "check": self.check, **came, **msgspec.to_builtins(finding)}
        _log({"at": rfc3339_micro(seconds(finding.last_seen)), "node": node, **event})


def _log(change: Mapping[str, object]) -> None:
    findings_log.info("%s", json.dumps(change, ensure_ascii=False))


def _first(key: Key, sign: Sign, number: int) -> ReportedFinding:
    return ReportedFinding(
        component=key[0],
        reason=key[1],
        verdict=sign.verdict,
        message=shorten(sign.message),
        fault_class=sign.fault_class,
        measurements=_measurements(sign),
        first_seen=rfc3339(sign.at),
        last_seen=rfc3339(sign.at),
        count=sign.count,
        occurrence=number,
        origin=sign.origin or "",
    )


def _measurements(sign: Sign) -> tuple[ReportedMeasurement, ...]:
    return tuple(
        ReportedMeasurement(name=each.name, value=each.value, unit=each.unit, threshold=each.threshold)
        for each in sign.measurements
    )


def _joined(known: ReportedFinding, sign: Sign) -> ReportedFinding:
    worse = severity(sign.verdict) > severity(Verdict(known.verdict))
    speaks = severity(sign.verdict) >= severity(Verdict(known.verdict))
    user = Origin.USER in (sign.origin, known.origin)
    return msgspec.structs.replace(
        known,
        verdict=sign.verdict if worse else known.verdict,
        message=shorten(sign.message) if speaks else known.message,
        measurements=(_measurements(sign) or known.measurements) if speaks else known.measurements,
        fault_class=sign.fault_class if speaks and sign.fault_class is not FaultClass.NONE else known.fault_class,
        last_seen=rfc3339(max(seconds(known.last_seen), sign.at)),
        count=known.count + sign.count,
        origin=Origin.USER if user else known.origin,
    )

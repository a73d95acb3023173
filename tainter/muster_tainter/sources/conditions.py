"""Turns Node conditions of other agents into findings, by the policy's rules. Pure functions, except for the state of
:class:`ConditionFeed`, which reports only changes.

A missing condition, or one with an unknown status, means neither bad nor resolved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node, NodeCondition
from muster_kube.api.times import seconds
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.record.node_record import NodeRecord
from muster_tainter.policy.sections.sources import Sources
from muster_tainter.sources.loki.finding_tracker import Found, Over
from muster_tainter.sources.occurrences import last_ended

CHECK = "condition"
COMPONENT = "host"


def conditions_of(node: Node, sources: Sources) -> tuple[ReportedFinding, ...]:
    """The current findings. occurrence: the condition's last transition in seconds; 1 if it has none."""
    found: list[ReportedFinding] = []
    for condition in node.status.conditions:
        rule = sources.by_type.get(condition.type)
        if rule is None or not rule.covers(condition.status, condition.reason):
            continue
        since = condition.last_transition_time or ""
        found.append(
            ReportedFinding(
                component=COMPONENT,
                reason=condition.type,
                verdict=rule.verdict,
                message=shorten(_words(condition)),
                fault_class=rule.fault_class,
                first_seen=since,
                last_seen=since,
                occurrence=max(1, int(seconds(since))),
            )
        )
    return tuple(found)


def is_good(node: Node, kind: str, sources: Sources) -> str:
    """Why ``kind`` is resolved, as text; empty if nothing reports that.

    A type that was removed from the policy counts as resolved: nobody watches it any more.
    """
    rule = sources.by_type.get(kind)
    if rule is None:
        return "this condition was removed from the policy"
    for condition in node.status.conditions:
        if condition.type == kind:
            known = condition.status in ("True", "False")
            return _words(condition) if known and not rule.covers(condition.status, condition.reason) else ""
    return ""


def _words(condition: NodeCondition) -> str:
    reason = f" ({condition.reason})" if condition.reason else ""
    message = f": {condition.message}" if condition.message else ""
    return f"Node condition {condition.type} is {condition.status}{reason}{message}"


@dataclass
class ConditionFeed:
    """memory:   returns a node's record
    reported: by node and type, the reported findings; turned: occurrences that were seen to become resolved since
    """

    sources: Callable[[], Sources]
    memory: Callable[[str], NodeRecord]
    found: Found
    over: Over
    now: Callable[[], str]
    reported: dict[str, dict[str, ReportedFinding]] = field(default_factory=dict)
    turned: dict[str, dict[str, int]] = field(default_factory=dict)

    def look(self, name: str, node: Node | None) -> None:
        """Process the Node's current state; None if it was removed."""
        if node is None:
            self.reported.pop(name, None)
            self.turned.pop(name, None)
            return
        sources = self.sources()
        reported = self.reported.get(name, {})
        if not sources.conditions and not reported and not self._left_over(name):
            return
        bad = {finding.reason: finding for finding in conditions_of(node, sources)}
        for kind, (known, occurrence) in self._open(name, reported).items():
            if kind in bad:
                continue
            why = is_good(node, kind, sources)
            if why:
                if known:
                    del reported[kind]
                    self.turned.setdefault(name, {})[kind] = occurrence
                self.over(name, CHECK, self._cleared(kind, occurrence, why))
        for kind, finding in bad.items():
            before = reported.get(kind)
            finding = self._numbered(name, finding) if before is None else self._still(before, finding)
            if finding != before:
                reported[kind] = finding
                self.found(name, CHECK, finding)
        if reported:
            self.reported[name] = reported
        else:
            self.reported.pop(name, None)

    def _left_over(self, name: str) -> bool:
        return any(fault.check == CHECK for fault in self.memory(name).open)

    def _open(self, name: str, reported: Mapping[str, ReportedFinding]) -> dict[str, tuple[bool, int]]:
        """By type: (reported by this process?, occurrence). The annotation has those of an earlier leader."""
        numbers = {kind: (True, finding.occurrence) for kind, finding in reported.items()}
        for fault in self.memory(name).open:
            if fault.check == CHECK and fault.component == COMPONENT and not fault.over:
                numbers.setdefault(fault.reason, (False, fault.occurrence))
        return numbers

    def _numbered(self, name: str, finding: ReportedFinding) -> ReportedFinding:
        """Number a finding by its condition, but above ended ones, in case the clock was set back."""
        before = self.turned.get(name, {}).pop(finding.reason, 0)
        number, ended_ms = last_ended((CHECK, COMPONENT, finding.reason), self.memory(name))
        if not before and (finding.occurrence > number or finding.occurrence * 1000 <= ended_ms):
            return finding
        return msgspec.structs.replace(finding, occurrence=max(finding.occurrence, number + 1, before + 1))

    def _still(self, before: ReportedFinding, finding: ReportedFinding) -> ReportedFinding:
        if finding.last_seen == before.last_seen or finding.occurrence > before.occurrence:
            return msgspec.structs.replace(finding, occurrence=max(before.occurrence, finding.occurrence))
        # it changed and returned between two looks, with a clock that was set back
        return msgspec.structs.replace(finding, occurrence=before.occurrence + 1)

    def _cleared(self, kind: str, occurrence: int, why: str) -> ClearedFault:
        return ClearedFault(
            component=COMPONENT,
            reason=kind,
            occurrence=occurrence,
            how="source",
            at=self.now(),
            message=shorten(why),
        )

"""Findings from sources other than the agents, kept until the source reports them as resolved, or this process ends.

Open faults are in the Node's annotation, regardless of this. A source that reads the same thing again uses the same
number, so a new leader neither loses nor duplicates a finding.
"""

from collections.abc import Callable, Collection

from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.node_report import FaultKey

KEYS_LIMIT = 64  # findings of one node and check; further ones are counted by ``dropped``

_Findings = dict[FaultKey, ReportedFinding]
_Over = dict[FaultKey, tuple[ClearedFault, ...]]


class ExternalFindings:
    """on_change: called with the node's name when its findings change."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._findings: dict[str, _Findings] = {}
        self._over: dict[str, _Over] = {}
        self.dropped = 0

    def add(self, node: str, check: str, finding: ReportedFinding) -> None:
        """``finding.occurrence`` rises with each new occurrence, and is the same when the same one is read again."""
        key = (check, finding.component, finding.reason)
        known = self._findings.setdefault(node, {})
        # one limit per check: anybody can write into a log, and must not hide another source's failure
        if key not in known and sum(each[0] == check for each in known) >= KEYS_LIMIT:
            self.dropped += 1
            return
        old = known.get(key)
        if old == finding or (old is not None and old.occurrence > finding.occurrence):
            return
        known[key] = finding
        self._on_change(node)

    def close(self, node: str, check: str, cleared: ClearedFault) -> None:
        """The finding is resolved, up to this occurrence."""
        key = (check, cleared.component, cleared.reason)
        finding = self._findings.get(node, {}).get(key)
        if finding is not None and finding.occurrence <= cleared.occurrence:
            del self._findings[node][key]
            if not self._findings[node]:
                del self._findings[node]
        known = self._over.setdefault(node, {})
        if known.get(key) == (cleared,):
            return
        if key not in known and len(known) >= KEYS_LIMIT:
            known.pop(next(iter(known)))
        known[key] = (cleared,)
        self._on_change(node)

    def of(self, node: str) -> tuple[_Findings, _Over]:
        return self._findings.get(node, {}), self._over.get(node, {})

    def nodes(self) -> set[str]:
        return {*self._findings, *self._over}

    def reset(self, kept: Collection[str]) -> None:
        """This process leads (again). Findings of checks that are not in ``kept`` come from sources that ran only while
        it led before; they may be outdated, and the sources report them again."""
        findings = {node: {k: v for k, v in known.items() if k[0] in kept} for node, known in self._findings.items()}
        over = {node: {k: v for k, v in known.items() if k[0] in kept} for node, known in self._over.items()}
        self._findings = {node: known for node, known in findings.items() if known}
        self._over = {node: known for node, known in over.items() if known}

    def forget(self, node: str) -> None:
        self._findings.pop(node, None)
        self._over.pop(node, None)

"""Processes the lines of one query: kernel lines go to the judge, pod lines to patterns, and both become findings."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import shorten
from muster_checks.containerlog.patterns import Patterns
from muster_checks.dmesg.sources.records import KernelLine
from muster_tainter.policy.sections.sources import KernelLines, PodLines
from muster_tainter.sources.loki.finding_tracker import QUIET_S, FindingTracker, Key
from muster_tainter.sources.loki.kernel_lines import Event, NodeJudges
from muster_tainter.sources.loki.log_formats import unwrap_line
from muster_tainter.sources.loki.pod_nodes import pod_of, sign_of
from muster_tainter.sources.loki.response import LogEntry

log = logging.getLogger(__name__)

HOST = "host"
SHOWN_BYTES = 4096  # of a line in the log

Known = Callable[[str], bool]  # whether a node of this name exists


class LineStream(Protocol):
    """homeless: lines of unknown nodes."""

    name: str
    homeless: int

    def matters(self, entry: LogEntry) -> bool: ...

    async def take(self, entries: Sequence[LogEntry]) -> None: ...


class KernelStream:
    def __init__(self, name: str, rule: KernelLines, judges: NodeJudges, firings: FindingTracker, known: Known) -> None:
        self.name = name
        self.homeless = 0
        self.unjudged = 0
        self._rule = rule
        self._judges = judges
        self._firings = firings
        self._known = known
        self._patterns = Patterns(rule.patterns)
        self._warned = False

    def matters(self, entry: LogEntry) -> bool:
        node = entry.labels.get(self._rule.node_label, "")
        if not self._known(node):
            self._log_homeless(entry, node)
            return False
        return self._judges.matters(node, entry, self._patterns.interesting)

    def _log_homeless(self, entry: LogEntry, node: str) -> None:
        self.homeless += 1
        if node or self._warned:
            return
        self._warned = True
        log.warning(
            "%s: skipped a line without the label %s, which gives its node; its labels: %s",
            self.name,
            self._rule.node_label,
            ", ".join(sorted(entry.labels)) or "none",
        )

    async def take(self, entries: Sequence[LogEntry]) -> None:
        by_node: dict[str, list[KernelLine]] = {}
        for entry in entries:
            node = entry.labels.get(self._rule.node_label, "")
            line = self._judges.line(entry, self._patterns.interesting)
            if line is not None and not self._judges.repeats(node, line):
                by_node.setdefault(node, []).append(line)
        for node, lines in by_node.items():
            for line in lines:
                try:
                    self._take_line(node, line)
                except Exception:
                    # a line that the judge cannot handle must not stop the lines after it
                    log.exception("could not judge a kernel line of node %s: %.200s", node, line.whole)
                    self.unjudged += 1

    def _take_line(self, node: str, line: KernelLine) -> None:
        events = self._judges.take(node, line)
        if events is not None:
            log_line(node, line.whole)
            apply_events(node, events, self._judges, self._firings)
            return
        for hit in self._patterns.hits(line.text):
            log_line(node, line.whole)
            sign = Sign(
                component=HOST,
                reason=hit.reason,
                verdict=hit.verdict,
                message=shorten(line.text),
                at=line.at,
                fault_class=hit.fault_class,
                origin=line.origin,
                line=line.whole,
            )
            self._firings.take(node, sign, quiet_s=QUIET_S)


class PodStream:
    """node_of: looks up the node of a pod on the API server."""

    def __init__(
        self, name: str, rule: PodLines, firings: FindingTracker, known: Known, node_of: Callable[[str], Awaitable[str]]
    ) -> None:
        self.name = name
        self.homeless = 0
        self._rule = rule
        self._firings = firings
        self._known = known
        self._node_of = node_of
        self._patterns = Patterns(rule.patterns, rule.known)

    def matters(self, entry: LogEntry) -> bool:
        return bool(self._patterns.hits(unwrap_line(entry.line)))

    async def take(self, entries: Sequence[LogEntry]) -> None:
        placed: list[tuple[LogEntry, str, str]] = []
        for entry in entries:  # all lookups first: after an error, lines that are counted already would repeat
            pod = pod_of(entry, self._rule)
            node = entry.labels.get(self._rule.node_label, "")
            if not node and pod:
                node = await self._node_of(pod)
            placed.append((entry, pod, node))
        for entry, pod, node in placed:
            if not self._known(node):
                self.homeless += 1
                continue
            text = unwrap_line(entry.line)
            log.info("node `%s` has pod log error: pod %s: %s", node, pod or "unknown", shorten(text, SHOWN_BYTES))
            for hit in self._patterns.hits(text):
                self._firings.take(node, sign_of(entry, hit, text, pod), quiet_s=QUIET_S)


def log_line(node: str, line: str) -> None:
    """Uses the Konduktor controller's wording, so that existing log searches still match."""
    log.info("node `%s` has dmesg error: %s", node, shorten(line, SHOWN_BYTES))


def apply_events(node: str, events: Sequence[Event], judges: NodeJudges, firings: FindingTracker) -> None:
    for event in events:
        if isinstance(event, AllClear):
            firings.clear(node, event)
        elif not firings.take(node, event):
            # it belongs to a closed fault: the next sign is judged separately
            judges.forget(node, event.component, event.reason)


def forget_in(judges: NodeJudges) -> Callable[[str, Key], None]:
    return lambda node, key: judges.forget(node, *key)

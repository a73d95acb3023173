"""Kernel lines from Loki, judged by the agent's catalogue and judge (:mod:`muster_checks.dmesg`), separately per node.

One judge serves all nodes: the state of a node is loaded before its lines and saved after them, because a judge's
pattern tables are a thousand times as large as the state of a node.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import Catalogue
from muster_checks.dmesg.judge import STATE_VERSION, JudgeState, KernelLogJudge
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.text_formats import NO_MESSAGE, USER_FACILITY, MessageBefore, TextReader
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_tainter.sources.http_client import NS
from muster_tainter.sources.loki.log_formats import unwrap_line, written_by_kernel
from muster_tainter.sources.loki.response import LogEntry

STATE_LIMIT = 256  # findings, and counts, that are kept per node
_INDENTED = " " * 4  # dmesg and journalctl indent a message's further lines by the width of the time
NODES_LIMIT = 20_000  # nodes whose last message is kept
REPEATS_LIMIT = 50_000  # records whose repetition is detected

Event = Sign | AllClear
_NEW = JudgeState(version=STATE_VERSION, open=[], windows=[], gpus={}, contexts={}, seen={})


class _LokisTime(Timeline):
    """Every line has Loki's time; a stamp since boot only gives the node's uptime."""

    def __init__(self) -> None:
        super().__init__(KernelClocks(realtime=lambda: 0.0, monotonic=lambda: 0.0))
        self.line_at = 0.0

    def begin(self, at: float) -> None:
        self.line_at, self.booted = at, 0.0

    def now(self) -> float:
        return self.line_at

    def at(self, uptime_s: float) -> float:
        self.booted = self.line_at - uptime_s
        return self.line_at

    def passed(self, at: float) -> float:  # noqa: ARG002 - a shipper's stamp: Loki's time is used
        return self.line_at


class NodeJudges:
    """now: seconds since the epoch, in Loki's time."""

    def __init__(self, now: Callable[[], float], catalogue: Catalogue | None = None) -> None:
        self._judge = KernelLogJudge(catalogue or load_catalogue(None), clock=now)
        self._time = _LokisTime()
        self._reader = TextReader(self._time, lambda _text: True)
        self._reader.live = True  # a line without a time has Loki's
        self._before: OrderedDict[str, MessageBefore] = OrderedDict()  # by node
        self._states: dict[str, JudgeState] = {}
        self._due: dict[str, float] = {}
        self._at = ""  # the node whose state the judge holds
        self._recent: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def matters(self, node: str, entry: LogEntry, interesting: Callable[[bytes], bool] = lambda _text: False) -> bool:
        """Whether the catalogue or ``interesting`` may use ``entry``. Call it once for each entry, in their order: a
        line of a syslog file may come from a line break in the message before it."""
        line = self._line(entry, interesting, self._before.pop(node, NO_MESSAGE))
        self._before[node] = self._reader.before
        if len(self._before) > NODES_LIMIT:
            self._before.popitem(last=False)
        return line is not None

    def line(self, entry: LogEntry, interesting: Callable[[bytes], bool] = lambda _text: False) -> KernelLine | None:
        """The message of ``entry``; None if neither the catalogue nor ``interesting`` may use it.

        Further lines of an entry belong to its message: the judge decides whether they are a driver's.
        """
        return self._line(entry, interesting, NO_MESSAGE)

    def _line(self, entry: LogEntry, interesting: Callable[[bytes], bool], before: MessageBefore) -> KernelLine | None:
        raw = unwrap_line(entry.line)
        self._reader.forget(before)
        self._time.begin(entry.at_ns / NS)
        # an indented line without a time continues the entry before it
        line = self._reader.take(raw.encode("utf-8", "replace"), continued=raw.startswith(_INDENTED))
        if line is None:
            return None
        text = line.text.encode("utf-8", "replace")
        if not (self._judge.interesting(text) or interesting(text)):
            return None
        if written_by_kernel(entry.line) is False:
            line = msgspec.structs.replace(line, origin=Origin.USER, facility=USER_FACILITY)
        return line

    def repeats(self, node: str, line: KernelLine) -> bool:
        """Whether the same kernel record was read before: a restarted shipper sends its log again."""
        if not line.stamp:
            return False
        name = (node, line.stamp, line.text)
        if name in self._recent:
            return True
        self._recent[name] = None
        if len(self._recent) > REPEATS_LIMIT:
            self._recent.popitem(last=False)
        return False

    def take(self, node: str, line: KernelLine) -> list[Event] | None:
        """The events of ``line``: empty if it repeats something known; None if it means nothing."""
        self._enter(node)
        before = self._known()
        events = self._judge.take(line)
        self._note_due(node)
        return events if events or self._known() != before else None

    def tick(self, now: float) -> list[tuple[str, list[Event]]]:
        """Events that are due, by node. now: up to when everything has been read."""
        events: list[tuple[str, list[Event]]] = []
        for node in [node for node, due in self._due.items() if due <= now]:
            self._enter(node)
            events.append((node, self._judge.tick(now)))
            self._note_due(node)
        return events

    def forget(self, node: str, component: str, reason: str) -> None:
        """The fault was closed: the next sign is judged separately."""
        if node == self._at or node in self._states:
            self._enter(node)
            self._judge.forget(component, (reason,))
            self._note_due(node)

    def drop(self, node: str) -> None:
        """The node was removed."""
        if node == self._at:
            self._judge.restore(_NEW)
            self._at = ""
        self._states.pop(node, None)
        self._due.pop(node, None)

    @property
    def nodes(self) -> set[str]:
        """Nodes with state."""
        return self._states.keys() | ({self._at} if self._at else set())

    def _known(self) -> tuple[int, ...]:
        counters = self._judge.counters
        return counters.signs, counters.stale, counters.covered, counters.unknown_gpus

    def _enter(self, node: str) -> None:
        if node == self._at:
            return
        if self._at:
            state = self._judge.state()
            if state.open or state.windows or state.gpus or state.contexts or state.seen:
                self._states[self._at] = _bounded(state)
            else:
                self._states.pop(self._at, None)
        self._judge.restore(self._states.get(node, _NEW))
        self._at = node

    def _note_due(self, node: str) -> None:
        due = self._judge.next_tick()
        if due is None:
            self._due.pop(node, None)
        else:
            self._due[node] = due


def _bounded(state: JudgeState) -> JudgeState:
    if len(state.open) > STATE_LIMIT:
        state.open = state.open[-STATE_LIMIT:]
    if len(state.windows) > STATE_LIMIT:
        state.windows = state.windows[-STATE_LIMIT:]
    return state

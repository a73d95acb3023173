"""Converts a saved kernel log into the NodeHealths that an agent would have published while the lines were written.

Files may have any size: they are read in chunks, and a regular file is open only while a chunk is read, so thousands
can be read in parallel. All times come from the lines, so the same file always gives the same result.

A new boot begins at a line in which the kernel prints its version. An agent publishes a boot after its first full pass;
here that is :data:`PASS_AFTER_S` after that line.
"""

import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from muster_agent.findings.health_status import CheckView, compose_status
from muster_agent.findings.ledger import Ledger
from muster_checks.dmesg import DMESG
from muster_checks.dmesg.catalogue.types import Catalogue
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.file import CHUNK_BYTES, LINE_BYTES
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.text_formats import TextReader, has_kernel_line
from muster_checks.dmesg.sources.timeline import SAVED_END_S, KernelClocks, SavedTimeline
from muster_kube.nodehealth import AgentIdentity, Metadata, NodeHealth

PASS_AFTER_S = 60.0
_SAME_BOOT_LINES, _SAME_BOOT_S = 20, 30.0  # between the journal's boot marker and the first kernel line
_BOOT = re.compile(rb"(?:^|[\]:;\dZ] ?)Linux version \d|^-- (?:Reboot|Boot [0-9a-f]+) ?--")
ReportedHealth = tuple[float, NodeHealth]


class NoKernelLog(Exception):
    """No file has a line of a kernel log."""


def read_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of a file. A pipe stays open, as it can be read only once. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        if not stat.S_ISREG(path.stat().st_mode):
            while data := file.read(size):
                yield data
            return
    offset = 0
    while True:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(size)
        if not data:
            return
        offset += len(data)
        yield data


class LogLines:
    """The lines of a file without newlines. ``overlong`` counts the lines that were truncated."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self.overlong = 0
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        """Raises OSError."""
        rest, dropping = b"", False
        for data in read_chunks(self._path):
            first, *more = data.split(b"\n")
            if not dropping:
                rest += first[: LINE_BYTES + 1 - len(rest)]
            for line in more:
                yield self._line(rest)
                rest, dropping = line, False
            if len(rest) > LINE_BYTES:
                rest, dropping = rest[: LINE_BYTES + 1], True
        if rest:
            yield self._line(rest)

    def _line(self, raw: bytes) -> bytes:
        self.count += 1
        if len(raw) > LINE_BYTES:
            self.overlong += 1
            return raw[:LINE_BYTES]
        return raw


class SavedKernelLog:
    """The kernel log of ``node`` in ``path``. year: of lines without a year (old syslog format).

    Valid after the last of :meth:`reports`: ``end``, the time of the last line in seconds since the epoch; ``undated``:
    the lines have no date (times since boot, or no year), and count from 1970; ``is_log``: some line is one of a kernel
    log, so that silence means that there was no fault.
    """

    def __init__(self, node: str, path: Path, catalogue: Catalogue, *, year: int = 1970) -> None:
        self.node = node
        self.path = path
        self.end = 0.0
        self.undated = False
        self.is_log = False
        self.lines = LogLines(path)
        new_year = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
        self._timeline = SavedTimeline(KernelClocks(realtime=lambda: new_year, monotonic=lambda: 0.0))
        self._catalogue = catalogue
        self._judge = self._new_judge()
        self._reader = TextReader(self._timeline, self._judge.interesting)
        self._boot = 1
        self._ledger = Ledger(DMESG.name, self._boot_id)
        self._published_boot = self._boot_id
        self._pass_at = 0.0  # when to publish the boot; 0: already published
        self._last = 0.0

    @property
    def malformed(self) -> int:
        return self._reader.malformed

    @property
    def _boot_id(self) -> str:
        return f"boot-{self._boot}"

    def _new_judge(self) -> KernelLogJudge:
        return KernelLogJudge(self._catalogue, clock=self._timeline.now)

    def reports(self) -> Iterator[ReportedHealth]:
        """NodeHealths, ordered by time. Raises OSError."""
        marked = 0, 0.0
        for raw in self.lines:
            if _BOOT.search(raw) is not None:
                near = self.lines.count - marked[0] <= _SAME_BOOT_LINES
                if self.is_log and not (near and self._timeline.now() - marked[1] <= _SAME_BOOT_S):
                    yield from self._boots(raw)
                marked = self.lines.count, self._timeline.now() if self.is_log else 0.0
            self.is_log = self.is_log or has_kernel_line(raw)
            line = self._reader.take(raw)
            if line is None:
                if self.lines.count % 256 == 0:
                    yield from self._pass_time(self._timeline.now())
                continue
            yield from self._pass_time(line.at)
            yield from self._take(line)
        self.end = self._timeline.now() if self.is_log else self._last
        if not self.is_log and not self._ledger.counter:
            return
        self.is_log = True
        self.undated = self.end < 10 * 365 * 86_400.0
        yield from self._pass_time(self.end)
        if self._pass_at:
            yield self._publish(self.end)

    def _take(self, line: KernelLine) -> Iterator[ReportedHealth]:
        if self._ledger.take(self._judge.take(line)):
            yield self._health(line.at)

    def _boots(self, raw: bytes) -> Iterator[ReportedHealth]:
        """A new boot begins with this line."""
        before = self._timeline.now()
        yield from self._pass_time(before)
        # times since boot start again at 0: assume that the new boot follows the old one immediately
        self._timeline.booted = before
        self._boot += 1
        self._judge = self._new_judge()
        self._ledger = Ledger(DMESG.name, self._boot_id, self._ledger.memory())
        self._reader.forget()
        self._reader.take(raw)
        self._pass_at = self._timeline.now() - SAVED_END_S + PASS_AFTER_S

    def _pass_time(self, now: float) -> Iterator[ReportedHealth]:
        """Reports that are due by time: warnings that expire, and the first full pass of a boot."""
        while True:
            tick = self._judge.next_tick()
            at = min(tick if tick is not None else now + 1.0, self._pass_at or now + 1.0)
            if at > now:
                return
            if at == self._pass_at:
                yield self._publish(at)
                continue
            if self._ledger.take(self._judge.tick(at)):
                yield self._health(at)
            if self._judge.next_tick() == tick:
                return  # the judge asks for the same tick again: wait for the next line

    def _publish(self, at: float) -> ReportedHealth:
        self._pass_at = 0.0
        self._published_boot = self._boot_id
        return self._health(at)

    def _health(self, at: float) -> ReportedHealth:
        self._last = max(at, self._last)
        findings, more = self._ledger.published()
        view = CheckView(
            name=DMESG.name,
            verdict=self._ledger.verdict(),
            findings=findings,
            more_findings=more,
            over=self._ledger.over(),
            last_occurrence=self._ledger.counter,
        )
        status = compose_status([view], boot_id=self._published_boot, agent=AgentIdentity())
        return self._last, NodeHealth(metadata=Metadata(name=self.node), status=status)

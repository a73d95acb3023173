"""Reads messages of this boot from the systemd journal: the kernel's messages, if /dev/kmsg does not exist.

``journalctl -k -o export`` runs as a child process, first without ``-f``, so that its exit marks the end of the
journal, and then with ``-f`` after the last cursor. If a caller waits for the end (``look_again``), the follower is
stopped and journalctl reads to the end again from the last cursor.

The entry format is systemd's export format (systemd.io/JOURNAL_EXPORT_FORMATS): ``NAME=value`` lines, or for any bytes
``NAME``, newline, length (64 bit, little endian), bytes, newline; an empty line ends an entry. Tested on hand-made
entries, not with a running journal daemon.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from muster_checks.dmesg.sources.records import DEFAULT_LEVEL, KERNEL_FACILITY, KernelLine, origin_of, uptime_stamp
from muster_checks.dmesg.sources.source import LINES_PER_TURN, Batch, Interesting, ReopenDelay, SourceCounts
from muster_checks.dmesg.sources.timeline import Timeline

_log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
ERRORS_BYTES = 4096  # kept of what journalctl prints about itself
ENTRY_BYTES = 1024 * 1024  # limit of an incomplete entry; a kernel message has 1 KiB, a journal entry may have any size
_KEPT = frozenset(
    (
        b"__CURSOR",
        b"__REALTIME_TIMESTAMP",
        b"_SOURCE_MONOTONIC_TIMESTAMP",
        b"_BOOT_ID",
        b"PRIORITY",
        b"SYSLOG_FACILITY",
        b"MESSAGE",
    )
)
JournalEntry = dict[bytes, bytes]


class JournalPlace(msgspec.Struct, frozen=True):
    """``cursor``: of the last entry processed; empty: none yet. ``skipping``: existing entries are skipped."""

    cursor: str = ""
    skipping: bool = False


class ExportParser:
    """Splits a stream of bytes into entries (only the fields in use). ``malformed``: number of entries dropped."""

    def __init__(self) -> None:
        self.malformed = 0
        self._rest = b""
        self._entry: JournalEntry = {}
        self._lost = False  # out of sync: everything up to the next empty line belongs to a dropped entry

    def feed(self, data: bytes) -> list[JournalEntry]:
        """The entries that ``data`` completes."""
        buffer = self._rest + data
        entries: list[JournalEntry] = []
        start = 0
        while (end := buffer.find(b"\n", start)) >= 0:
            line = buffer[start:end]
            if not line:
                self._finish(entries)
                start = end + 1
                continue
            name, equals, value = line.partition(b"=")
            if self._lost or equals:
                self._keep(name, value)
                start = end + 1
                continue
            if len(buffer) < end + 9:
                break
            size = int.from_bytes(buffer[end + 1 : end + 9], "little")
            stop = end + 9 + size
            if size > ENTRY_BYTES or (len(buffer) > stop and buffer[stop : stop + 1] != b"\n"):
                self._lost = True
                start = end + 1
                continue
            if len(buffer) <= stop:
                break
            self._keep(name, buffer[end + 9 : stop])
            start = stop + 1
        self._rest = buffer[start:]
        if len(self._rest) > ENTRY_BYTES + CHUNK_BYTES:
            self._rest, self._lost = b"", True
        return entries

    def _keep(self, name: bytes, value: bytes) -> None:
        if name in _KEPT and not self._lost:
            self._entry.setdefault(name, value)

    def _finish(self, entries: list[JournalEntry]) -> None:
        if self._lost:
            self.malformed += 1
        elif self._entry:
            entries.append(self._entry)
        self._entry, self._lost = {}, False


def parse_entry(entry: JournalEntry, timeline: Timeline, boot_id: str) -> KernelLine | None:
    """The message of an entry; None if it has none.

    For an entry of this boot the time is the kernel's own stamp, because the journal daemon's is later, at boot by
    seconds.
    """
    text = entry.get(b"MESSAGE")
    if text is None:
        return None
    facility = _number(entry, b"SYSLOG_FACILITY", KERNEL_FACILITY)
    usec = _number(entry, b"_SOURCE_MONOTONIC_TIMESTAMP", -1)
    ours = entry.get(b"_BOOT_ID", b"").decode("ascii", "replace") == boot_id.replace("-", "")
    if usec >= 0 and ours:
        at = timeline.at(usec / 1e6)
    else:
        received = _number(entry, b"__REALTIME_TIMESTAMP", -1)
        at = timeline.now() if received < 0 else min(received / 1e6, timeline.now())
    return KernelLine(
        text=text.decode("utf-8", "replace"),
        at=at,
        uptime_s=usec / 1e6 if usec >= 0 else max(0.0, at - timeline.booted),
        level=_number(entry, b"PRIORITY", DEFAULT_LEVEL) & 7,
        facility=facility,
        origin=origin_of(facility),
        seq=0,
        stamp=uptime_stamp(usec) if usec >= 0 else "",
    )


def _number(entry: JournalEntry, name: bytes, default: int) -> int:
    value = entry.get(name, b"")
    return int(value) if value.isdigit() and len(value) < 19 else default


class JournalSource:
    """A :class:`~muster_checks.dmesg.sources.source.LogSource` on the journal.

    ``command``: journalctl with the options that select messages; ``root``: root of the node's file system.
    """

    def __init__(
        self,
        timeline: Timeline,
        interesting: Interesting,
        place: JournalPlace,
        boot_id: str,
        *,
        root: Path = Path("/"),
        command: Sequence[str] = ("journalctl", "-k"),
    ) -> None:
        self.counts = SourceCounts()
        self._timeline = timeline
        self._interesting = interesting
        self._cursor = place.cursor
        self._skipping = place.skipping
        self._boot_id = boot_id
        self._command = [*command, "-o", "export", "--all", "--quiet", "--no-pager"]
        if root != Path("/"):
            self._command.append(f"--root={root}")
        self._child: subprocess.Popen[bytes] | None = None
        self._following = False
        self._at_end = False
        self._again = False
        self._parser = ExportParser()
        self._malformed = 0  # by the children before this one
        self._waiting: list[JournalEntry] = []
        self._armed: tuple[int, ...] = ()  # file descriptors of the child that wake the reader
        self._printed = b""  # the end of the child's standard error
        self._trouble = ""
        self._backoff = ReopenDelay()

    def open(self, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake

    def read(self) -> Batch:
        batch = Batch([], [])
        if self._child is None and not self._start():
            return batch
        if not self._waiting:
            batch.more = self._read_child()
        entries, self._waiting = self._waiting[:LINES_PER_TURN], self._waiting[LINES_PER_TURN:]
        for entry in entries:
            self._take(entry, batch)
        batch.more = batch.more or bool(self._waiting)
        batch.at_end = self._at_end and not self._waiting
        return batch

    def _take(self, entry: JournalEntry, batch: Batch) -> None:
        self._cursor = entry.get(b"__CURSOR", b"").decode("ascii", "replace") or self._cursor
        if self._skipping:
            return
        self.counts.lines += 1
        text = entry.get(b"MESSAGE", b"")
        if self._interesting(text) and (line := parse_entry(entry, self._timeline, self._boot_id)):
            batch.lines.append(line)

    def _read_child(self) -> bool:
        """Read a chunk of the child's output; at its end, start the next child.

        Returns False if there is nothing to read now.
        """
        self._drain_errors()
        data = self._read_pipe(CHUNK_BYTES)
        if data is None:
            return False
        if data:
            self._waiting = self._parser.feed(data)
            self.counts.malformed = self._malformed + self._parser.malformed
            return True
        if (why := self._end_child()) or self._following:
            self._trouble = f"journalctl: {why or 'ended unexpectedly'}"
            _log.warning("%s; restarting in %.1f s", self._trouble, self._backoff.delay_s)
            return False
        self._backoff.reset()
        self._skipping = False
        self._at_end = not self._again  # a read that began before the last look_again() does not answer it
        follow, self._again = not self._again, False
        return self._start(follow=follow)

    def _read_pipe(self, size: int) -> bytes | None:
        """None: nothing to read now. Empty: the child has closed its output."""
        if self._child is None or self._child.stdout is None:
            return None
        try:
            return os.read(self._child.stdout.fileno(), size)
        except BlockingIOError:
            return None

    def _drain_errors(self) -> None:
        """A child that nobody listens to would block after 64 KiB of warnings, and no line would follow."""
        child = self._child
        while child is not None and child.stderr is not None:
            try:
                printed = os.read(child.stderr.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                return
            if not printed:
                self._disarm()
                child.stderr.close()
                child.stderr = None
            self._printed = (self._printed + printed)[-ERRORS_BYTES:]

    def _start(self, *, follow: bool = False) -> bool:
        command = [*self._command, *(("-f", "--no-tail") if follow else ())]
        if self._cursor:
            command.append(f"--after-cursor={self._cursor}")
        try:
            # a separate process group: signals to the agent's group do not reach it, and it can be killed as a group
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._trouble = f"{command[0]}: {error.strerror} (needed to read the journal)"
            return False
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._malformed = self.counts.malformed
        self._printed = b""
        self._parser = ExportParser()
        self._following = follow
        self._at_end = self._at_end and follow
        self._trouble = ""
        return True

    def _end_child(self) -> str:
        """End the child and its process group. Returns the error if the child failed before."""
        child = self._child
        if child is None:
            return ""
        self._disarm()
        code = child.poll()
        if code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(0.2)  # it has closed its output and is about to exit
        killed = code is None
        if killed:
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        self._drain_errors()
        self._child = None
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        lines = self._printed.decode("utf-8", "replace").strip().splitlines()
        # one that was killed here has printed everything, and was slow to exit
        if code == 0 or (killed and code == -signal.SIGKILL and not lines):
            return ""
        return lines[-1][:200] if lines else f"exit status {code}"

    def arm(self) -> None:
        if self._child is None:
            self._backoff.call(self._loop, self._wake)
        elif self._waiting:
            self._wake()
        elif not self._armed:
            pipes = (self._child.stdout, self._child.stderr)
            self._armed = tuple(pipe.fileno() for pipe in pipes if pipe is not None)
            for descriptor in self._armed:
                self._loop.add_reader(descriptor, self._fire)

    def look_again(self) -> None:
        self._at_end = False
        if self._child is not None and not self._following:
            self._again = True
        elif self._child is not None:
            self._kill_child()

    def _kill_child(self) -> None:
        """Kill the child. Entries not yet taken in are read again, because the next child starts after the last
        cursor."""
        if self._child is not None:
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
            self._end_child()
        self._waiting = []

    def place(self) -> bytes:
        return msgspec.json.encode(JournalPlace(self._cursor, self._skipping))

    def health(self) -> str:
        return self._trouble

    def close(self) -> None:
        self._backoff.cancel()
        self._kill_child()

    def _fire(self) -> None:
        self._disarm()
        self._wake()

    def _disarm(self) -> None:
        for descriptor in self._armed:
            self._loop.remove_reader(descriptor)
        self._armed = ()

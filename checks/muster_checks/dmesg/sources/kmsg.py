r"""Reads /dev/kmsg: one record per read, in order, none twice; lost records are counted.

A record is ``prio,seq,usec,flags[,caller=T1];text``, then lines `` KEY=value`` (Documentation/ABI/testing/dev-kmsg).
``prio & 7`` is the level, ``prio >> 3`` the facility. Bytes below 32, above 126 and the backslash are escaped as
``\xNN``; a message of several lines is one record that contains ``\x0a``. ``usec`` is local_clock() in microseconds
(timeline.py).

Fragments: the kernel joins the pieces that one caller prints. A piece that it could not join, because another processor
printed in between, has the flag ``c``; kernels before 4.9 mark the first piece ``c`` and each following one ``+``. So a
``+`` is joined to the piece before it, and a ``c`` only if the caller's id shows that it continues the record before
it. Otherwise it may belong to another message. No message is held back to wait for its next piece.
"""

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Protocol

import msgspec

from muster_checks.dmesg.sources.records import KernelLine, origin_of, uptime_stamp
from muster_checks.dmesg.sources.source import LINES_PER_TURN, Batch, Gap, Interesting, ReopenDelay, SourceCounts
from muster_checks.dmesg.sources.timeline import Timeline

_log = logging.getLogger(__name__)

# The longest record is 8192 bytes (CONSOLE_EXT_LOG_MAX; 2048 since 6.4). With a shorter buffer the read fails with
# EINVAL after the kernel has already skipped the record: it is lost.
RECORD_BYTES = 8192
# Number of lines that are matched as one text. More would not save measurable time, and if the text matches, each of
# its lines must be matched separately.
LINES_PER_LOOK = 32
_LARGEST = 2**63  # seq and usec are 64-bit; real values stay far below
FARTHEST = 2**32  # records between two reads: no log is overwritten this fast, so such a number is invalid
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class KmsgReader(Protocol):
    """An open /dev/kmsg, positioned at its oldest record. Raises the device's own OSErrors."""

    def read(self) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


def open_kmsg(path: Path) -> int:
    """A descriptor at the oldest record. Raises OSError. The kernel checks privileges only here, not at each read."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class KmsgDevice:
    """The real device. Raises OSError if it cannot be opened.

    opened: a descriptor from :func:`open_kmsg`, opened before the process dropped its privileges. The caller keeps it.
    Only one device may use it at a time, because copies of a descriptor share its position in the log.
    """

    def __init__(self, path: Path, opened: int | None = None) -> None:
        if opened is None:
            self._fd = open_kmsg(path)
        else:
            os.lseek(opened, 0, os.SEEK_SET)  # an earlier device has moved its position
            self._fd = os.dup(opened)
        # not a method: a Python frame takes a twentieth of the time for a line
        self.read = partial(os.read, self._fd, RECORD_BYTES)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class KmsgPlace(msgspec.Struct, frozen=True):
    """``seq``: the last record processed in this boot; -1: none yet; None: unknown, the oldest record counts as next.

    ``skipping``: the backlog is skipped (``start: now``).
    """

    seq: int | None = None
    skipping: bool = False


def unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text)


def split_record(raw: bytes) -> tuple[list[bytes], bytes] | None:
    """The fields before the first ``;`` and the message's raw text; None if it is not a record."""
    head, semicolon, rest = raw.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 4:
        return None
    return fields, _message(rest)


def _message(rest: bytes) -> bytes:
    """The text without the device dictionary."""
    end = rest.find(b"\n")
    return rest if end < 0 else rest[:end]


def parse_record(fields: list[bytes], text: bytes, timeline: Timeline) -> KernelLine | None:
    """The message of a split record with unescaped text; None if its numbers are invalid."""
    try:
        prio, seq, usec = int(fields[0]), int(fields[1]), int(fields[2])
    except ValueError:
        return None
    if not (0 <= prio < _LARGEST and 0 <= seq < _LARGEST and 0 <= usec < _LARGEST):
        return None
    facility = prio >> 3
    return KernelLine(
        text=text.decode("utf-8", "replace"),
        at=timeline.at(usec / 1e6),
        uptime_s=usec / 1e6,
        level=prio & 7,
        facility=facility,
        origin=origin_of(facility),
        seq=seq,
        stamp=uptime_stamp(usec),
    )


class KmsgSource:
    """A :class:`~muster_checks.dmesg.sources.source.LogSource` on /dev/kmsg.

    ``place``: where an earlier run in this boot stopped; ``KmsgPlace(-1)`` in a new boot; ``KmsgPlace()`` to begin with
    the oldest record; ``KmsgPlace(skipping=True)`` to begin with new records.

    ``interesting`` gets one text, or several joined by newlines. For several it returns True if it would for any one.
    """

    def __init__(
        self,
        path: Path,
        timeline: Timeline,
        interesting: Interesting,
        place: KmsgPlace,
        device: Callable[[Path], KmsgReader] = KmsgDevice,
    ) -> None:
        self.counts = SourceCounts()
        self._path = path
        self._timeline = timeline
        self._interesting = interesting
        self._last = place.seq
        self._skipping = place.skipping
        self._make_device = device
        self._device: KmsgReader | None = None
        self._newest = -1  # of the records read since the device was opened
        self._resuming = True  # no new record since the device was opened
        self._unnumbered = 0  # malformed records since the last valid one: each had a number, so they are not a gap
        self._armed = False
        self._trouble = ""
        self._backoff = ReopenDelay()

    def open(self, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake

    def read(self) -> Batch:
        batch = Batch([], [])
        device = self._device or self._open_device()
        if device is None:
            return batch
        raws, stopped = self._gather(device)
        batch.size = sum(map(len, raws))
        if not self._take_run(raws, batch):
            self._take_each(raws, batch)
        if stopped is None:
            batch.more = True
        elif isinstance(stopped, BlockingIOError):
            batch.at_end = self._at_end()
            batch.more = not batch.at_end
        else:
            self._give_up_device(stopped.strerror or str(stopped))
        return batch

    def _gather(self, device: KmsgReader) -> tuple[list[bytes], OSError | None]:
        """The raw records of a turn, and the error that ended it: BlockingIOError at the end of the log, None if the
        turn is full."""
        raws: list[bytes] = []
        refused = 0
        while (wanted := LINES_PER_TURN - len(raws) - refused) > 0:
            try:
                # a loop in C; what was read before an error stays in the list
                raws.extend(islice(iter(device.read, b""), wanted))
            except BrokenPipeError:
                refused += (
                    1  # overwritten meanwhile: the next read returns the oldest record, and its number shows the loss
                )
                continue
            except OSError as error:
                if error.errno == errno.EINVAL:
                    refused += 1  # too long: the kernel skipped it, and the next number shows the loss
                    continue
                return raws, error
            if len(raws) + refused < LINES_PER_TURN:
                return raws, OSError(errno.ENODATA, "end of file")
        return raws, OSError(errno.ENODATA, "returns no records") if refused == LINES_PER_TURN else None

    def _take_run(self, raws: list[bytes], batch: Batch) -> bool:
        """Process all records at once if each is a complete message with the next number, which is nearly always so.
        This takes a fifth of the time per record, because every loop over the records is one in C. Otherwise return
        False and change nothing."""
        if self._skipping or self._last is None or not raws:
            return False
        try:
            _, numbers, _, rests = zip(*[raw.split(b",", 3) for raw in raws], strict=True)
            first, end = self._last + 1, self._last + 1 + len(raws)
            if list(map(int, numbers)) != list(range(first, end)):
                return False
            if not all(map(_is_whole, rests)):
                rests = tuple(map(_without_caller, rests))
        except ValueError:  # too few fields, no number, or a fragment
            return False
        self._resuming = False
        self._unnumbered = 0
        self._newest = self._last = end - 1
        self.counts.lines += len(raws)
        for begin in range(0, len(rests), LINES_PER_LOOK):
            some = slice(begin, begin + LINES_PER_LOOK)
            if self._interesting(_messages(rests[some])):
                for raw in raws[some]:
                    self._release(split_record(raw), batch)  # type: ignore[arg-type]  # it is a record
        return True

    def _take_each(self, raws: list[bytes], batch: Batch) -> None:
        held: tuple[list[bytes], bytes] | None = None
        for raw in raws:
            held = self._take(raw, held, batch)
        if held is not None:
            self._release(held, batch)

    def _take(
        self, raw: bytes, held: tuple[list[bytes], bytes] | None, batch: Batch
    ) -> tuple[list[bytes], bytes] | None:
        """Process one record. Releases the held record if this one does not continue it, and returns the record that
        the next one may continue."""
        record = split_record(raw)
        seq = _number(record[0][1]) if record else None
        if record is None or seq is None or (self._last is not None and seq > self._last + FARTHEST):
            self.counts.malformed += 1
            self._unnumbered += 1
            return held
        self._newest = seq
        if self._last is not None:
            if self._resuming and seq <= self._last:
                self._unnumbered = 0
                return held  # processed in an earlier run
            lost = seq - self._last - 1 - self._unnumbered
            if lost > 0 and not self._skipping:
                self.counts.lost += lost
                batch.gaps.append(Gap(lost, seq, self._timeline.now()))
        self._resuming = False
        self._unnumbered = 0
        self._last = seq
        if self._skipping:
            return None
        self.counts.lines += 1
        if held is None:
            return record
        if record[0][3] != b"-" and _continues(record[0], held[0]):
            return held[0], held[1] + record[1]
        self._release(held, batch)
        return record

    def _release(self, record: tuple[list[bytes], bytes], batch: Batch) -> None:
        text = record[1]
        if b"\\x" in text:
            text = unescape(text)
        if not self._interesting(text):
            return
        line = parse_record(record[0], text, self._timeline)
        if line is None:
            self.counts.malformed += 1
        else:
            batch.lines.append(line)

    def _at_end(self) -> bool:
        self._backoff.reset()
        self._skipping = False
        if self._resuming and self._last is not None and 0 <= self._newest < self._last:
            # Numbers never decrease within a boot, so the machine was restored from a snapshot. Continuing from the
            # saved place would read nothing.
            _log.warning(
                "the kernel log ends at record %d, before the saved record %d: reading starts from the beginning",
                self._newest,
                self._last,
            )
            self._last = None
            self._close_device()
            return False
        return True

    def arm(self) -> None:
        if self._device is None:
            self._backoff.call(self._loop, self._wake)
        elif not self._armed:
            try:
                self._loop.add_reader(self._device.fileno(), self._fire)
            except OSError as error:
                self._give_up_device(f"cannot wait for new records: {error.strerror}")
                self._backoff.call(self._loop, self._wake)
            else:
                self._armed = True

    def look_again(self) -> None:
        """No-op: each ``read()`` looks at the device itself."""

    def place(self) -> bytes:
        return msgspec.json.encode(KmsgPlace(self._last, self._skipping))

    def health(self) -> str:
        return self._trouble

    def close(self) -> None:
        self._backoff.cancel()
        self._close_device()

    def _fire(self) -> None:
        self._disarm()  # level-triggered: if left in, it would fire until the stream reads
        self._wake()

    def _disarm(self) -> None:
        if self._armed and self._device is not None:
            self._loop.remove_reader(self._device.fileno())
        self._armed = False

    def _open_device(self) -> KmsgReader | None:
        try:
            self._device = self._make_device(self._path)
        except OSError as error:
            self._trouble = f"{self._path}: {error.strerror}"
            if isinstance(error, PermissionError):
                self._trouble += " (with kernel.dmesg_restrict=1, reading the kernel log needs CAP_SYSLOG)"
            return None
        self._newest = -1
        self._resuming = True
        self._unnumbered = 0
        self._trouble = ""
        return self._device

    def _give_up_device(self, why: str) -> None:
        self._trouble = f"{self._path}: {why}"
        _log.warning("%s; retrying in %.1f s", self._trouble, self._backoff.delay_s)
        self._close_device()

    def _close_device(self) -> None:
        self._disarm()
        if self._device is not None:
            self._device.close()
            self._device = None


_is_whole = methodcaller("startswith", b"-;")  # the flag of a complete message, and no further field


def _without_caller(rest: bytes) -> bytes:
    """``-;text`` of ``-,caller=T1;text``. Raises ValueError if it is not a complete message."""
    fields, semicolon, text = rest.partition(b";")
    if fields.split(b",", 1)[0] != b"-" or not semicolon:
        raise ValueError(rest)
    return b"-;" + text


def _messages(rests: Sequence[bytes]) -> bytes:
    """The messages of ``-;text`` records, joined by newlines."""
    joined = b"\n".join(rests)
    if b"\n " in joined:  # a device dictionary: few records have one
        joined = b"\n".join(map(_message, rests))
    return (b"\n" + joined).replace(b"\n-;", b"\n")


def _number(field: bytes) -> int | None:
    try:
        number = int(field)
    except ValueError:
        return None
    return number if 0 <= number < _LARGEST else None


def _continues(fields: list[bytes], before: list[bytes]) -> bool:
    if fields[3] == b"+":
        return before[3] in (b"c", b"+")
    return len(fields) > 4 and fields[4:] == before[4:]

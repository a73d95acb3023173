"""Parses kernel messages in text files, one physical line at a time.

Known forms, each with or without ``<prio>`` in front (``dmesg -r``):

=================================================  ==========================================
``6,4004,9184121699,-;text``                       /dev/kmsg records saved unchanged
``[ 1843.308145] text``                            dmesg, netconsole, serial consoles
``[Thu Nov 20 03:42:11 2025] text``                dmesg -T (the local time of this process)
``2025-11-20T03:42:11,123456+00:00 text``          dmesg --time-format iso
``2025-11-20T03:42:11.1+00:00 host kernel: text``  syslog, current form
``Nov 20 03:42:11 host kernel: [ 12.3] text``      syslog, traditional form: the latest such day in the past
``text``                                           bare
=================================================  ==========================================

A line without a time belongs to the line before it (dmesg indents the further lines of one message): it gets that
line's time, level and facility and is passed on as a separate line, in order. So each line of a message is judged when
it is read, and no line is held back for a next one. A line without a predecessor gets the current time. The device
dictionary (`` KEY=value`` after a record) is left out. Without other information the facility is kernel and the level
info, but a syslog line whose writer is not ``kernel:`` comes from user space.
"""

import re
import time
from datetime import UTC, datetime

from muster_checks.dmesg.sources.kmsg import parse_record, split_record, unescape
from muster_checks.dmesg.sources.records import DEFAULT_LEVEL, KERNEL_FACILITY, KernelLine, origin_of
from muster_checks.dmesg.sources.source import Interesting
from muster_checks.dmesg.sources.timeline import Timeline

_RECORD = re.compile(rb"\d+,\d+,\d+,[-c+]")
_DICTIONARY = re.compile(rb" [A-Z][A-Z0-9_]*=")
_PRIO = re.compile(rb"<(\d{1,3})>")
_UPTIME = re.compile(rb"\[ *(\d{1,12})(?:\.(\d{1,9}))?\] ?")  # at most 30,000 years
_CTIME = re.compile(rb"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_ISO = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? ")
_SYSLOG = re.compile(rb"([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) ")
_WRITER = re.compile(rb"\S+ kernel: ")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_DAY_S = 86_400.0
USER_FACILITY = 1
_BEGINNING = re.compile(
    b"^(?:" + b"|".join(form.pattern for form in (_PRIO, _RECORD, _UPTIME, _CTIME, _ISO, _SYSLOG)) + b")", re.M
)


# Marks that only kernel messages have: a time since boot with its fraction, the fields of a /dev/kmsg record, a time as
# `dmesg -T` and `dmesg --time-format iso` print it, and a syslog line that the kernel wrote.
_KERNEL_MARK = re.compile(
    rb"^(?:<\d{1,3}>)?(?:\d+,\d+,\d+,[-c+]|\[ *\d{1,12}\.\d{1,9}\]|<\d{1,3}>[^<\n]|"
    + _CTIME.pattern
    + rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{1,9}(?:Z|[+-]\d\d:?\d\d) |(?:"
    + _ISO.pattern
    + rb"|"
    + _SYSLOG.pattern
    + rb")"
    + _WRITER.pattern
    + rb")",
    re.M,
)
_LINE_WITH_TEXT = re.compile(rb"^.*\S", re.M)
_LABELLED_LINE = re.compile(rb"^.*\S: \S", re.M)
_JSON_OR_XML = re.compile(rb"\s*(?:\{|\[\s*[\"{\[]|<[A-Za-z?!])")
_LOOKED_AT_BYTES = 4 << 20


def has_kernel_line(text: bytes) -> bool:
    """Some line begins with a time or a priority, as lines of a kernel log do."""
    return _BEGINNING.search(text) is not None


def is_kernel_log(text: bytes) -> bool:
    """Enough lines begin with a time or a priority, and at least one of them has a mark of the kernel.

    One such line alone proves nothing, because any file may contain or quote one. In plain text a tenth of the lines is
    enough (a serial console also shows firmware and logins), in a file with NUL bytes half of them.
    """
    if _KERNEL_MARK.search(text) is None:
        return False
    beginning = text[:_LOOKED_AT_BYTES]
    enough = 2 if b"\0" in beginning else 10
    return enough * len(_BEGINNING.findall(beginning)) >= len(_LINE_WITH_TEXT.findall(beginning))


def may_be_bare_messages(text: bytes) -> bool:
    """Plain text of which at least half of the lines have the form ``driver: text``.

    Kernel messages without times look like this, and so do other files. Only a line that the catalogue knows tells
    them apart.
    """
    beginning = text[:_LOOKED_AT_BYTES]
    lines = len(_LINE_WITH_TEXT.findall(beginning))
    if not lines or b"\0" in beginning or _JSON_OR_XML.match(beginning):
        return False
    return 2 * len(_LABELLED_LINE.findall(beginning)) >= lines


class TextReader:
    """Turns physical lines into :class:`KernelLine`, and keeps the values that a line inherits from the one before it.

    ``malformed`` counts lines that look like a record but are not valid.
    """

    def __init__(self, timeline: Timeline, interesting: Interesting) -> None:
        self.malformed = 0
        self._timeline = timeline
        self._interesting = interesting
        self.forget()

    def forget(self) -> None:
        """Another file begins: drop all state."""
        self._at: float | None = None
        self._stamp = ""
        self._level = DEFAULT_LEVEL
        self._facility = KERNEL_FACILITY
        self._in_record = False
        self._by_user = False

    def take(self, raw: bytes) -> KernelLine | None:
        """The message of one physical line without its newline; None if the judge does not need it."""
        raw = raw.rstrip(b"\r")  # serial consoles end their lines with \r
        if self._in_record and _DICTIONARY.match(raw):
            return None
        if _RECORD.match(raw):
            return self._record(raw)
        self._in_record = False
        start = self._stamped(raw)
        text = raw[start:] if start is not None else raw if self._at is None else raw.lstrip()
        if not text or not self._interesting(text):
            return None
        at = self._timeline.now() if self._at is None else self._at
        return KernelLine(
            text=text.decode("utf-8", "replace"),
            at=at,
            uptime_s=max(0.0, at - self._timeline.booted),
            level=self._level,
            facility=self._facility,
            origin=origin_of(self._facility),
            seq=0,
            stamp=self._stamp,
        )

    def _record(self, raw: bytes) -> KernelLine | None:
        record = split_record(raw)
        line = parse_record(record[0], unescape(record[1]), self._timeline) if record else None
        if line is None or record is None:
            self.malformed += 1
            return None
        self._in_record = True
        self._at, self._stamp, self._level, self._facility = line.at, line.stamp, line.level, line.facility
        return line if self._interesting(unescape(record[1])) else None

    def _stamped(self, raw: bytes) -> int | None:
        """The offset of the text after the time, which is stored; None if the line has no time."""
        start, prio = 0, None
        self._by_user = False
        if found := _PRIO.match(raw):
            start, prio = found.end(), int(found[1])
        timed = self._time(raw, start)
        if timed is None and prio is None:
            return None
        if timed is not None:
            end, self._at = timed
            self._stamp = raw[start:end].decode("ascii", "replace").strip()
            start = end
        self._level = DEFAULT_LEVEL if prio is None else prio & 7
        self._facility = prio >> 3 if prio is not None else USER_FACILITY if self._by_user else KERNEL_FACILITY
        return start

    def _time(self, raw: bytes, start: int) -> tuple[int, float] | None:
        """The end offset of the time, and the time (epoch seconds)."""
        if found := _UPTIME.match(raw, start):
            return found.end(), self._timeline.at(float(b"%s.%s" % (found[1], found[2] or b"0")))
        try:
            if found := _CTIME.match(raw, start):
                at = time.mktime(time.strptime(found[1].decode("ascii"), "%a %b %d %H:%M:%S %Y"))
                return found.end(), self._timeline.passed(at)
            if found := _ISO.match(raw, start):
                moment = datetime.fromisoformat(found[0].decode("ascii").strip().replace(",", "."))
                # dmesg writes a comma, and no host name
                end = found.end() if b"," in found[0] else self._after_writer(raw, found.end())
                return end, self._timeline.passed(moment.timestamp())
            if found := _SYSLOG.match(raw, start):
                return self._after_writer(raw, found.end()), self._yearless(found)
        except (ValueError, OverflowError):  # 31 February or year 0: not a valid time
            return None
        return None

    def _after_writer(self, raw: bytes, start: int) -> int:
        """The offset after ``host kernel: [ 12.3] ``; a syslog line of another writer comes from user space."""
        found = _WRITER.match(raw, start)
        if found is None:
            self._by_user = True
            return start
        uptime = _UPTIME.match(raw, found.end())
        return uptime.end() if uptime else found.end()

    def _yearless(self, found: re.Match[bytes]) -> float:
        """Syslog writes local time without a year: take this year, or the year before if that day is in the future."""
        now = self._timeline.now()
        year = datetime.fromtimestamp(now, UTC).year + 1  # in local time the new year may already have begun
        month = _MONTHS.index(found[1]) + 1
        for candidate in (
            year,
            year - 1,
            year - 2,
            year - 3,
            year - 4,
            year - 5,
        ):  # 29 February may be several years back
            try:
                moment = datetime(candidate, month, int(found[2]), int(found[3]), int(found[4]), int(found[5]))  # noqa: DTZ001 - local time is what syslog writes
            except ValueError:
                continue
            if moment.timestamp() <= now + _DAY_S:
                return self._timeline.passed(moment.timestamp())
        raise ValueError(found[0])

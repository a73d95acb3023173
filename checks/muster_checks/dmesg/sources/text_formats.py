"""Parses kernel messages in text files, one physical line at a time.

Known forms, each with or without ``<prio>`` in front (``dmesg -r``):

=================================================  ==========================================
``6,4004,9184121699,-;text``                       /dev/kmsg records saved unchanged
``[ 1843.308145] text``                            dmesg, netconsole, serial consoles
``[Thu Nov 20 03:42:11 2025] text``                dmesg -T (the local time of this process)
``2025-11-20T03:42:11,123456+00:00 text``          dmesg --time-format iso
``2025-11-20T03:42:11.1+00:00 host kernel: text``  syslog, current form
``Thu 2025-11-20 03:42:11 UTC host kernel: text``  journalctl -o short-full, also without weekday or zone
``Nov 20 03:42:11 host kernel: [ 12.3] text``      syslog, traditional form: the latest such day in the past
``kern  :err   : [ 1843.308145] text``             dmesg -x
``[ 1843.308145][ T1234] text``                    a kernel that prints the caller's id
``2025-11-20T03:42:11.1Z stdout F text``           a container's log (CRI)
``{"MESSAGE": "text"}``, ``{"log": "text"}``       the journal or a container's log as JSON; also ``msg``, ``message``
``"msg": "text"``                                  a line of dmesg -J
``text``                                           bare
=================================================  ==========================================

message_text.py lists more prefixes, whose times are not read.

A line without a time or other prefix belongs to the line before it (dmesg indents the further lines of one message). It
may come from a line break in a user's text, so it is passed on only if the first line is one of a driver that prints
several lines (message_text.py). It then gets that line's time, level and facility. No line is held back for a next one.
In a log without times each line is a message. JSON is read only in a log that begins with it. A time that cannot be
read (a month in another language) is no time: such lines do not count towards a rate, unless they are read while they
are written. A time without a zone, or with one that is neither UTC nor a number, is local time of this process; if that
is in the future, it cannot be read. The device dictionary (`` KEY=value`` after a record) is left out.
Without other information the facility is kernel and the level info. A container's log comes from user space, whatever
its text says, and so does a syslog line whose writer is not ``kernel:``.
"""

import re
import time
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from muster_checks.dmesg.message_text import (
    has_further_lines,
    holds_user_text,
    message_start,
    starts_with_driver_name,
)
from muster_checks.dmesg.sources.kmsg import parse_record, split_record, unescape
from muster_checks.dmesg.sources.records import DEFAULT_LEVEL, KERNEL_FACILITY, KernelLine, origin_of
from muster_checks.dmesg.sources.source import Interesting
from muster_checks.dmesg.sources.timeline import SAME_CLOCK_S, Timeline

_RECORD = re.compile(rb"\d+,\d+,\d+,[-c+]")
_DICTIONARY = re.compile(rb" [A-Z][A-Z0-9_]*=")
_PRIO = re.compile(rb"<(\d{1,3})>")
_LEVELS = (b"emerg", b"alert", b"crit", b"err", b"warn", b"notice", b"info", b"debug")
_DECODED_PRIO = re.compile(rb"([a-z]{3,8}\d?) *:(" + b"|".join(_LEVELS) + rb") *: ?")
_UPTIME = re.compile(rb"\[ *(\d{1,12})(?:\.(\d{1,9}))?(?: <[ +\d.]*>)?\] ?")  # at most 30,000 years
_CTIME = re.compile(rb"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})(?: <[ +\d.]*>)?\] ?")
_ISO = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? ")
_DATE = re.compile(
    rb"(?:[A-Z][a-z]{2} )?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    rb"(?: ?(Z|[+-]\d\d(?::?\d\d)?)(?= )| ([A-Z]{3,5})(?! kernel[:\[])(?= ))? "
)
_SYSLOG = re.compile(rb"([A-Z][a-z]{2}) ([ \d]?\d) (\d\d):(\d\d):(\d\d)(?:\.\d{1,9})? ")
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
_HOST = re.compile(rb"[\w.-]{1,255} (?=\S)")
_WRITER = re.compile(rb"\S+ (?:kern\.\w{1,8} )?kernel(?:\[\d{1,10}\])?(?:: | - - - )")
_CONTAINER = re.compile(rb"(" + _ISO.pattern + rb")(?:stdout|stderr) ([FP])(?::\S{0,64})? ")
# The kernel's own time in microseconds, behind a syslog line's time of arrival; "<...>": dmesg -d.
_EXACT_TIME = re.compile(r"\[ *([1-9]\d*\.\d{6})(?: <[^>]*>)?\]$|^(\S+T\S+,\d{6})\S*$")
_DRIVER = re.compile(rb"[^\s:(\[]*")
_JSON_TEXTS = ("MESSAGE", "msg", "message", "log")
_JSON_LINE = re.compile(rb'\s*"(?:msg|MESSAGE|message|log)" ?: ?("(?:[^"\\]|\\.)*"),?\s*$')
_json_object = msgspec.json.Decoder(dict[str, object])
_json_text = msgspec.json.Decoder(str)
_Value = TypeVar("_Value")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_DAY_S = 86_400.0
USER_FACILITY = 1
_BEGINNING = re.compile(
    b"^(?:" + b"|".join(form.pattern for form in (_PRIO, _RECORD, _UPTIME, _CTIME, _ISO, _DATE, _SYSLOG)) + b")", re.M
)


# Marks that only kernel messages have: a time since boot with its fraction, the fields of a /dev/kmsg record, a time as
# `dmesg -T` and `dmesg --time-format iso` print it, and a syslog line that the kernel wrote.
_KERNEL_MARK = re.compile(
    rb"^(?:<\d{1,3}>)?(?:\d+,\d+,\d+,[-c+]|\[ *\d{1,12}\.\d{1,9}\]|<\d{1,3}>[^<\n]|"
    + _CTIME.pattern
    + rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{1,9}(?:Z|[+-]\d\d:?\d\d) |(?:"
    + _ISO.pattern
    + rb"|"
    + _DATE.pattern
    + rb"|"
    + _SYSLOG.pattern
    + rb")"
    + _WRITER.pattern
    + rb")",
    re.M,
)
_LINE_WITH_TEXT = re.compile(rb"^.*\S", re.M)
_LABELLED_LINE = re.compile(rb"^.*\S: \S", re.M)
# dmesg -J, and journalctl -k -o json
_JSON_LOG = re.compile(rb'\s*\{(?:\s*"dmesg"\s*:\s*\[|[^\n]*"_TRANSPORT" ?: ?"kernel")')
_JSON_OR_XML = re.compile(rb"\s*(?:\{|\[\s*[\"{\[]|<[A-Za-z?!])")
_LOOKED_AT_BYTES = 4 << 20


def has_kernel_line(text: bytes) -> bool:
    """Some line begins with a time or a priority, as lines of a kernel log do, or the first one names the kernel."""
    return _BEGINNING.search(text) is not None or b"kernel" in text[: message_start(text)]


def is_kernel_log(text: bytes) -> bool:
    """Enough lines begin with a time or a priority, and at least one of them has a mark of the kernel.

    One such line alone proves nothing, because any file may contain or quote one. In plain text a tenth of the lines is
    enough (a serial console also shows firmware and logins), in a file with NUL bytes half of them.
    """
    if _JSON_LOG.match(text) is not None:
        return True
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


def _decode_json(decoder: msgspec.json.Decoder[_Value], raw: bytes, default: _Value) -> _Value:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return default


def _exact_time(stamp: str) -> str:
    """The kernel's time in microseconds within ``stamp``; empty if it has none."""
    found = _EXACT_TIME.search(stamp)
    return (found[1] or found[2]) if found else ""


def _driver(text: bytes) -> bytes:
    """The first word of a message."""
    return _DRIVER.match(text)[0]  # type: ignore[index]  # it matches every text


class MessageBefore(msgspec.Struct, frozen=True):
    """``stamp``: its time as printed; ``first``: its first line."""

    stamp: str = ""
    first: bytes = b""


NO_MESSAGE = MessageBefore()


class TextReader:
    """Turns physical lines into :class:`KernelLine`, and keeps the values that a line inherits from the one before it.

    ``malformed`` counts lines that look like a record but are not valid. ``live``: lines are read while they are
    written, so that the time of reading is that of a line without its own.
    """

    def __init__(self, timeline: Timeline, interesting: Interesting) -> None:
        self.malformed = 0
        self.live = False
        self._timeline = timeline
        self._interesting = interesting
        self.forget()

    def forget(self, before: MessageBefore = NO_MESSAGE) -> None:
        """Another file begins: drop all state, except for the message ``before`` the next line."""
        self._at: float | None = None
        self._container_at: float | None = None
        self._stamp = before.stamp
        self._level = DEFAULT_LEVEL
        self._facility = KERNEL_FACILITY
        self._in_record = False
        self._by_user = self._after_host = False  # a program wrote the line, and the host's name comes before it
        self._first = before.first  # the first line of the message
        self._prefixed = False  # the log has times or other prefixes, so that a line without one continues a message
        self._json = False  # the log is JSON
        self._partial = self._partial_next = False  # the line before is continued in this one, this one in the next

    @property
    def before(self) -> MessageBefore:
        """The last message, for :meth:`forget`."""
        return MessageBefore(self._stamp, self._first)

    def take(self, raw: bytes, *, continued: bool = False) -> KernelLine | None:
        """The message of one physical line without its newline; None if the judge does not need it.

        ``continued``: the line belongs to the entry of the line before it, also in a log without times.
        """
        raw = raw.rstrip(b"\r")  # serial consoles end their lines with \r
        if self._in_record and _DICTIONARY.match(raw):
            return None
        if _RECORD.match(raw):
            return self._record(raw)
        self._in_record = False
        self._by_user = self._after_host = False
        before = self._stamp
        raw, is_record = self._unwrap(raw)
        partial, self._partial = self._partial, self._partial_next
        start = self._stamped(raw)
        prefix = message_start(raw, start or 0)
        text = raw[prefix:]
        if start is None and _CLOCK.search(raw, 0, prefix) is not None:
            self._at, self._stamp = (
                self._container_at,
                "",
            )  # the time cannot be read, and is not that of the line before
        if start is not None and self._is_same_record(before, text):
            return None
        if start is not None or raw[:prefix].strip() or is_record:
            self._first, self._prefixed = text, True
            if start is None:
                self._level, self._facility = DEFAULT_LEVEL, USER_FACILITY if self._by_user else KERNEL_FACILITY
        elif not self._prefixed and not continued:
            self._first = text = raw.lstrip(b" \t>")
            self._facility = USER_FACILITY if self._by_user else KERNEL_FACILITY
        elif has_further_lines(self._first.decode("utf-8", "replace")):
            text = raw.lstrip()
        else:
            return None
        if partial or not text:
            return None
        if not self._interesting(text):
            # "host NVRM: Xid": the journal takes the first word that a program wrote into the kernel log for its name
            host = _HOST.match(text) if self._after_host else None
            if host is None or not self._interesting(text := text[host.end() :]):
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
            timed=self.live or self._at is not None,
        )

    def _is_same_record(self, stamp_before: str, text: bytes) -> bool:
        """Whether ``text`` is taken for a further line of the message before it.

        /proc/kmsg and consoles give each line of a record the time of the record. A line of the same microsecond may
        therefore come from a line break in a user's text, unless the same driver printed both lines and its message
        quotes no user. The name before a colon may be that of a network interface, which a user may call ``NVRM``.
        """
        if self._stamp[-8:] != stamp_before[-8:] and not self._stamp.endswith(">]"):
            return False  # nearly always, and cheaper than to parse both
        exact = _exact_time(self._stamp)
        if not exact or exact != _exact_time(stamp_before):
            return False
        first = self._first.decode("utf-8", "replace")
        return _driver(text) != _driver(self._first) or not starts_with_driver_name(first) or holds_user_text(first)

    def _unwrap(self, raw: bytes) -> tuple[bytes, bool]:
        """The line without what a container's log or JSON puts around it, and whether it is a whole message."""
        self._partial_next = False
        self._container_at = None
        if (found := _CONTAINER.match(raw)) is not None:
            self._by_user = True
            self._partial_next = found[2] == b"P"
            timed = self._time(found[1], 0)
            self._after_host = False
            if timed is not None:
                self._at = self._container_at = timed[1]
                self._stamp = found[1].decode("ascii").strip()
            return raw[found.end() :], False
        if self._prefixed and not self._json:
            return raw, False  # a further line of a message, which may be a user's text
        if (quoted := _JSON_LINE.match(raw)) is not None:
            self._json = True
            return _decode_json(_json_text, quoted[1], "").encode("utf-8", "replace"), True
        if not raw.lstrip().startswith(b"{"):
            return raw, False
        fields = _decode_json(_json_object, raw, {})
        key = next((key for key in _JSON_TEXTS if key in fields), "")
        message = fields.get(key)
        if isinstance(message, list):  # the journal's form for bytes that are not UTF-8
            message = "".join(chr(one) for one in message if isinstance(one, int) and 0 < one < 127)
        if not isinstance(message, str):
            return raw, False
        self._json = True
        self._by_user = (
            key == "log"  # a container's
            or fields.get("_TRANSPORT", "kernel") != "kernel"
            or str(fields.get("SYSLOG_FACILITY", KERNEL_FACILITY)) != str(KERNEL_FACILITY)
        )
        return message.rstrip("\r\n").encode("utf-8", "replace"), key != "log"

    def _record(self, raw: bytes) -> KernelLine | None:
        record = split_record(raw)
        line = parse_record(record[0], unescape(record[1]), self._timeline) if record else None
        if line is None or record is None:
            self.malformed += 1
            return None
        self._in_record = True
        self._at, self._stamp, self._level, self._facility = line.at, line.stamp, line.level, line.facility
        self._first, self._prefixed = record[1], True
        return line if self._interesting(unescape(record[1])) else None

    def _stamped(self, raw: bytes) -> int | None:
        """The offset of the text after the time, which is stored; None if the line has no time."""
        start, prio = 0, None
        if found := _PRIO.match(raw):
            start, prio = found.end(), int(found[1])
        elif found := _DECODED_PRIO.match(raw):
            facility = KERNEL_FACILITY if found[1] == b"kern" else USER_FACILITY
            start, prio = found.end(), facility << 3 | _LEVELS.index(found[2])
        timed = self._time(raw, start)
        if timed is None and prio is None:
            return None
        if timed is not None:
            end, at = timed
            # the time of a container's log is of a known clock, a time since boot may be of another boot
            self._at = at if self._container_at is None else self._container_at
            self._stamp = raw[start:end].decode("ascii", "replace").strip()
            start = end
        self._level = DEFAULT_LEVEL if prio is None else prio & 7
        self._facility = USER_FACILITY if self._by_user else (prio or 0) >> 3
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
            if found := _DATE.match(raw, start):
                return found.end(), self._dated(found)
            if found := _SYSLOG.match(raw, start):
                return self._after_writer(raw, found.end()), self._yearless(found)
        except (ValueError, OverflowError):  # 31 February or year 0: not a valid time
            return None
        return None

    def _after_writer(self, raw: bytes, start: int) -> int:
        """The offset after ``host kernel: [ 12.3] ``; a syslog line of another writer comes from user space."""
        found = _WRITER.match(raw, start)
        if found is None:
            decoded = _DECODED_PRIO.match(raw[start:].lstrip())
            by_user = decoded is None or decoded[1] != b"kern"
            self._by_user = self._by_user or by_user  # a program's line may look like the kernel's
            self._after_host = by_user and not raw[:start].endswith(b"Z ")  # a container's log has no host
            return start
        uptime = _UPTIME.match(raw, found.end())
        return uptime.end() if uptime else found.end()

    def _dated(self, found: re.Match[bytes]) -> float:
        zone = b"+00:00" if found[2] == b"Z" or found[3] in (b"UTC", b"GMT") else found[2] or b""
        at = datetime.fromisoformat((found[1].replace(b",", b".") + zone).decode("ascii")).timestamp()
        passed = self._timeline.passed(at)
        if not zone and passed < at - SAME_CLOCK_S:
            raise ValueError(found[0])  # of another zone
        return passed

    def _yearless(self, found: re.Match[bytes]) -> float:
        """Syslog writes local time without a year: take this year, or the year before if that day is in the future."""
        now = self._timeline.now()
        year = datetime.fromtimestamp(now, UTC).year + 1  # in local time the new year may already have begun
        month = _MONTHS.index(found[1]) + 1
        for candidate in range(year, year - 6, -1):  # 29 February may be several years back
            try:
                moment = datetime(candidate, month, int(found[2]), int(found[3]), int(found[4]), int(found[5]))  # noqa: DTZ001 - local time is what syslog writes
            except ValueError:
                continue
            if moment.timestamp() <= now + _DAY_S:
                return self._timeline.passed(moment.timestamp())
        raise ValueError(found[0])

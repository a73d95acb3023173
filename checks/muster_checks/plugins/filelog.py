"""Parses log lines as node-problem-detector's ``filelog`` does: regular expressions extract the time and the message.
For both, the last group counts, or the whole match if there is none. Lines that do not match are skipped.
"""

from muster_checks.base.npd_json import FileRefused
from muster_checks.dmesg.catalogue.match import Pattern
from muster_checks.dmesg.catalogue.npd_rules import LogMonitor
from muster_checks.dmesg.sources.records import DEFAULT_LEVEL, KernelLine, origin_of
from muster_checks.dmesg.sources.source import Interesting
from muster_checks.dmesg.sources.text_formats import USER_FACILITY
from muster_checks.dmesg.sources.timeline import Timeline
from muster_checks.plugins.go_time import compile_layout


class FileLines:
    """The reader for :class:`~muster_checks.dmesg.sources.file.FileSource`. Raises FileRefused.

    ``malformed`` counts relevant lines whose time could not be read.
    """

    def __init__(self, monitor: LogMonitor, timeline: Timeline, interesting: Interesting) -> None:
        self.malformed = 0
        self.live = False  # no effect: every line has its own time
        self._timeline = timeline
        self._interesting = interesting
        self._skipped = [text.encode() for text in monitor.skip_list if text]
        self._time = _expression(monitor, "timestamp")
        self._message = _expression(monitor, "message")
        layout = monitor.plugin_config.get("timestampFormat", "")
        try:
            self._at = compile_layout(layout)
        except ValueError as error:
            raise FileRefused(f'pluginConfig.timestampFormat: "{layout}": {error}') from None

    def forget(self) -> None:
        """Called when another file begins. Nothing is kept between lines."""

    def take(self, raw: bytes) -> KernelLine | None:
        """The message of one line; None if it has none, is irrelevant, or is older than this boot."""
        if any(text in raw for text in self._skipped):
            return None
        message = self._message.last_group(raw)
        if message is None or not self._interesting(message):
            return None
        stamp = self._time.last_group(raw)
        at = None if stamp is None else self._at(stamp.decode("utf-8", "replace"), self._timeline.now())
        if stamp is None or at is None:
            self.malformed += 1
            return None
        if at < self._timeline.booted:
            return None
        at = self._timeline.passed(at)
        return KernelLine(
            text=message.decode("utf-8", "replace"),
            at=at,
            uptime_s=at - self._timeline.booted,
            level=DEFAULT_LEVEL,
            facility=USER_FACILITY,
            origin=origin_of(USER_FACILITY),
            seq=0,
            stamp=stamp.decode("utf-8", "replace"),
        )


def _expression(monitor: LogMonitor, key: str) -> Pattern:
    given = monitor.plugin_config.get(key, "")
    if not given:
        raise FileRefused(f"pluginConfig.{key}: missing: a filelog needs timestamp, message and timestampFormat")
    try:
        return Pattern(given)
    except ValueError as error:
        raise FileRefused(f'pluginConfig.{key}: "{given}": {error}; expected RE2 syntax') from None

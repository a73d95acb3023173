"""Logging of every part: one line for each record on standard error, as text or JSON, whatever the message contains."""

import json
import logging
import re
import sys
from typing import Any, Literal

from muster_kube.api.times import rfc3339

# the settings log_format and log_level of every part
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_OURS = frozenset(("time", "level", "logger", "message"))


class OneLineFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z WARNING message key=value``, or the same as a JSON object.

    The record provides the keys: ``log.info(…, extra={"fields": {…}})``. Keys in ``json_fields`` repeat parts of the
    message and appear only in JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = rfc3339(record.created)
        fields: dict[str, Any] = {k: v for k, v in getattr(record, "fields", {}).items() if k not in _OURS}
        more: dict[str, Any] = {k: v for k, v in getattr(record, "json_fields", {}).items() if k not in _OURS}
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}: {self.formatException(record.exc_info)}"
        if self._as_json:
            entry = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
            return _printable(json.dumps(entry | fields | more, ensure_ascii=False), as_json=True)
        rest = "".join(f" {key}={_word(value)}" for key, value in fields.items())
        # a line feed in a message could forge the next log line, and an escape sequence what a terminal shows of others
        return _printable(f"{time} {record.levelname} {message}{rest}", as_json=False)


def configure_logging(log_format: str, level: int | str = logging.INFO) -> None:
    """Send all loggers to standard error.

    log_format: one of LogFormat
    level:      the least severe level that is logged, as a number of :mod:`logging` or one of LogLevel
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(as_json=log_format == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper() if isinstance(level, str) else level)
    # one line for each request, which the API server's audit log has as well
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _printable(text: str, *, as_json: bool) -> str:
    """The text with escapes for control characters (C0, DEL, C1), line separators and changes of direction."""
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0], as_json=as_json), text)


def _escaped(char: str, *, as_json: bool) -> str:
    if as_json:  # JSON knows no \x
        return f"\\u{ord(char):04x}"
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return short.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def _word(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=\n\r\t') else text

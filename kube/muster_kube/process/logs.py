"""Logging of every part: one line for each record on standard error, as text or JSON, whatever the message contains."""

import json
import logging
import sys
from typing import Any, Literal

from muster_kube.api.times import rfc3339

# the settings log_format and log_level of every part
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

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
            return json.dumps(entry | fields | more, ensure_ascii=False)
        rest = "".join(f" {key}={_word(value)}" for key, value in fields.items())
        # a line feed in a message could forge the next log line
        return f"{time} {record.levelname} {message}{rest}".replace("\r", "\\r").replace("\n", "\\n")


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


def _word(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=\n\r\t') else text

"""Extracts the original line from the formats in which log shippers wrap it.

==========================================================  =============================================
``2024-07-09T05:37:45.1Z stdout F text``                    a container's log file (CRI)
``{"log": "text\\n", "stream": "stdout", "time": …}``        a container's log file (Docker)
``{"MESSAGE": "text", "_TRANSPORT": "kernel", …}``          the journal as JSON (promtail, journald receivers)
``{"body": "text", …}``                                     an OpenTelemetry collector's older Loki exporter
``text``                                                    any other line, unchanged
==========================================================  =============================================
"""

import re

import msgspec

_CRI = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?::\S{0,64})? "
)
_KEYS = ("MESSAGE", "log", "body")
_object = msgspec.json.Decoder(dict[str, object])
_DEPTH = 3  # a journal in a container's log in a collector's body


def unwrap_line(line: str) -> str:
    text = line
    for _ in range(_DEPTH):
        inner = _within(text)
        if inner is None:
            break
        text = inner
    return text.rstrip("\r\n")


def written_by_kernel(line: str) -> bool | None:
    """Whether the journal says that the kernel wrote it; None if the line is not from the journal."""
    fields = _fields(line)
    transport = None if fields is None else fields.get("_TRANSPORT")
    return transport == "kernel" if isinstance(transport, str) else None


def _within(text: str) -> str | None:
    found = _CRI.match(text)
    if found is not None:
        return text[found.end() :]
    fields = _fields(text)
    if fields is None:
        return None
    for key in _KEYS:
        inner = fields.get(key)
        if isinstance(inner, str):
            return inner
    return None


def _fields(text: str) -> dict[str, object] | None:
    if not text.startswith("{"):
        return None
    try:
        return _object.decode(text.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        return None

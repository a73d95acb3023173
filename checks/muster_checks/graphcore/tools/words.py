"""Bounded reading of the tools' values: markers for a missing value, and values truncated to a component's size."""

import re

_NO_VALUE = {"n/a", "unknown", "unknown error", "not supported", "none", "null", "nan", "inf", "true", "false"}
_UNFIT = re.compile(r"[^A-Za-z0-9_.:,\[\]-]")
VALUE_LIMIT = 128


def word(text: object) -> str:
    """A value as the tools print it, stripped; empty if it is a marker for a missing value."""
    if not isinstance(text, str):
        return ""
    value = text.strip()[:VALUE_LIMIT]
    return "" if value.strip("[]").lower() in _NO_VALUE else value


def name(text: object) -> str:
    """A value that becomes part of a component or reason; empty if it is unsuitable."""
    value = word(text)
    return "" if _UNFIT.search(value) else value


def lines(text: bytes, limit_bytes: int = 1 << 20) -> list[str]:
    """The complete lines of a tool's output. A last line without a newline is dropped: it was truncated, and half a
    number is a wrong number."""
    whole, newline, _ = text[:limit_bytes].rpartition(b"\n")
    return whole.decode("utf-8", "replace").splitlines() if newline else []

"""Bounded reading of the tools' words: what stands where a value is missing, and values cut to a component's size."""

import re

_NO_VALUE = {"n/a", "unknown", "unknown error", "not supported", "none", "null", "nan", "inf", "true", "false"}
_UNFIT = re.compile(r"[^A-Za-z0-9_.:,\[\]-]")
VALUE_LIMIT = 128


def word(text: object) -> str:
    """A value as the tools write it, stripped; empty where it says that there is none."""
    if not isinstance(text, str):
        return ""
    value = text.strip()[:VALUE_LIMIT]
    return "" if value.strip("[]").lower() in _NO_VALUE else value


def name(text: object) -> str:
    """A value that becomes part of a component or reason; empty where it cannot."""
    value = word(text)
    return "" if _UNFIT.search(value) else value


def lines(text: bytes, limit_bytes: int = 1 << 20) -> list[str]:
    """The whole lines of what a tool printed. A last line without its newline was cut off: it is left out, since half
    a number is a wrong number."""
    whole, newline, _ = text[:limit_bytes].rpartition(b"\n")
    return whole.decode("utf-8", "replace").splitlines() if newline else []

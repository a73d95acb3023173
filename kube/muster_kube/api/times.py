"""Converts between seconds since the epoch and RFC 3339 UTC."""

from datetime import UTC, datetime

_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()  # the limit of datetime


def rfc3339(seconds: float) -> str:
    """``1700000000.1234`` -> ``2023-11-14T22:13:20.123Z``; empty for 0, which means "never"."""
    return _text(seconds, "milliseconds") if seconds > 0 else ""


def rfc3339_whole(seconds: float) -> str:
    """``1700000000.9`` -> ``2023-11-14T22:13:20Z``: whole seconds, as in Kubernetes objects."""
    return _text(int(seconds), "seconds")


def rfc3339_micro(seconds: float) -> str:
    """With microseconds, for the log."""
    return _text(seconds, "microseconds")


def seconds(text: str) -> float:
    """The inverse; 0 for an empty or invalid string, because people can edit the objects that contain it.

    The result can be formatted again: times before 1970 or after 9999 are clamped (an offset can move one there).
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    at = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    return min(max(at, 0.0), _LATEST)


def _text(seconds: float, precision: str) -> str:
    return datetime.fromtimestamp(min(seconds, _LATEST), UTC).isoformat(timespec=precision).replace("+00:00", "Z")

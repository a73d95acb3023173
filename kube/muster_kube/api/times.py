"""Seconds since the epoch to RFC 3339 UTC, and back."""

from datetime import UTC, datetime

_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()  # a calendar goes no further


def rfc3339(seconds: float) -> str:
    """``1700000000.1234`` -> ``2023-11-14T22:13:20.123Z``; empty for 0, which means "never"."""
    return _text(seconds, "milliseconds") if seconds > 0 else ""


def rfc3339_whole(seconds: float) -> str:
    """``1700000000.9`` -> ``2023-11-14T22:13:20Z``: whole seconds, as Kubernetes writes its own times."""
    return _text(int(seconds), "seconds")


def rfc3339_micro(seconds: float) -> str:
    """With microseconds, for the log."""
    return _text(seconds, "microseconds")


def seconds(text: str) -> float:
    """The inverse; 0 for an empty or unreadable text (times come back from objects that people can edit).

    What comes out can be written again: times before 1970 or after 9999 (an offset can move one there) are cut.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    at = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    return min(max(at, 0.0), _LATEST)


def _text(seconds: float, precision: str) -> str:
    return datetime.fromtimestamp(min(seconds, _LATEST), UTC).isoformat(timespec=precision).replace("+00:00", "Z")

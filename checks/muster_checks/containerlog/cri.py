"""Decodes the format of container logs and joins lines that the container runtime has split.

Format (Kubernetes, design proposal "CRI: Log management"): ``TIME STREAM TAGS TEXT``, for example
``2026-07-09T05:37:45.123456789Z stderr F text``. The first tag is F for the last piece of a line and P for an earlier
one; containerd and CRI-O split lines at 16 KiB or less. Pieces of stdout and stderr may alternate.
"""

from datetime import datetime

LINE_BYTES = 32 * 1024  # the rest of a longer line is not judged
TIME_BYTES = 64  # more than TIME has
STREAMS = (b"stdout", b"stderr")


class MalformedLine(ValueError):
    """The line is not in CRI's format."""


class CriLines:
    """The lines of one container."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, bytearray] = {}
        self.overlong = 0

    @property
    def kept_bytes(self) -> int:
        """Of unfinished lines."""
        return sum(map(len, self._pieces.values()))

    def take(self, raw: bytes) -> tuple[bytes, bytes] | None:
        """(TIME, the whole line) if ``raw`` completes a line; None for an earlier piece. Raises MalformedLine."""
        fields = raw.split(b" ", 3)
        if len(fields) < 3 or fields[1] not in STREAMS:
            raise MalformedLine
        at, stream, tags, *rest = fields
        text = rest[0] if rest else b""
        tag = tags.partition(b":")[0]
        pieces = self._pieces.get(stream)
        if tag == b"F":
            if pieces is None:
                self.overlong += len(text) > LINE_BYTES
                return at, text[:LINE_BYTES]
            del self._pieces[stream]
            self.overlong += len(pieces) + len(text) > LINE_BYTES
            return at, bytes(pieces + text)[:LINE_BYTES]
        if tag != b"P":
            raise MalformedLine
        if pieces is None:
            pieces = self._pieces[stream] = bytearray()
        # one byte more shows that the line was longer
        pieces += text[: LINE_BYTES + 1 - len(pieces)]
        return None

    def forget(self) -> None:
        """Drop unfinished lines: their rest will not follow."""
        self._pieces.clear()


def epoch_seconds(at: bytes) -> float | None:
    """TIME as seconds since the epoch; None if it is not a time."""
    try:
        return datetime.fromisoformat(at.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return None

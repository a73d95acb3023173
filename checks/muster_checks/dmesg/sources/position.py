"""The position of a stream of kernel messages: a restart continues from it without repeating or skipping a line.

The agent stores it as opaque bytes (JSON). It contains the place in the source and the judge's state (counting windows,
quiet times, device names) of the same moment; otherwise a line would count twice or never.
"""

import logging
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import read_text

_log = logging.getLogger(__name__)

VERSION = 1


class Position(msgspec.Struct, frozen=True):
    """``source``: kind and path, because a place is valid for its source only. ``place``: see ``LogSource.place``.

    booted: epoch seconds of the boot as that run computed it (timeline.py); judge: the judge's state;
    gap_at: epoch seconds of the last loss of records that is still reported.
    """

    boot_id: str
    source: str
    place: str
    booted: float
    judge: msgspec.Raw
    gap_at: float | None = None
    version: int = VERSION


def load_position(saved: bytes | None) -> Position | None:
    """None if there is no valid position: reading then starts as on the first run."""
    if not saved:
        return None
    try:
        position = msgspec.json.decode(saved, type=Position)
    except msgspec.DecodeError as error:
        _log.warning("cannot decode the saved position in the kernel log: %s: reading starts from the beginning", error)
        return None
    if position.version != VERSION:
        _log.warning(
            "the saved position in the kernel log has version %d, not %d: reading starts from the beginning",
            position.version,
            VERSION,
        )
        return None
    # a Raw is a view of the whole input: copy it
    return msgspec.structs.replace(position, judge=msgspec.Raw(bytes(position.judge)))


def read_boot_id(path: Path) -> str:
    """``/proc/sys/kernel/random/boot_id``; empty if it does not exist."""
    text = read_text(path, 256) or ""
    return text if text.isascii() else ""

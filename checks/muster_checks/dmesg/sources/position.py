"""Where a stream of kernel messages stopped: all that a restart needs to read nothing twice and skip nothing.

Kept as opaque bytes by the agent (JSON inside). It covers what has been judged: the place in the source and the judge's
own memory (open windows, quiet times, names of devices) are of one moment, or a line would count twice or never.
"""

import logging
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import read_text

_log = logging.getLogger(__name__)

VERSION = 1


class Position(msgspec.Struct, frozen=True):
    """``source``: kind and path, a place means nothing to another one. ``place``: see ``Source.place``.

    booted: epoch seconds of the boot as that run took it (timeline.py); judge: the judge's state;
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
    """None when there is none, or none that can be read: reading then begins as for the first time."""
    if not saved:
        return None
    try:
        position = msgspec.json.decode(saved, type=Position)
    except msgspec.DecodeError as error:
        _log.warning("the saved position in the kernel log is unreadable (%s): begin anew", error)
        return None
    if position.version != VERSION:
        _log.warning(
            "the saved position in the kernel log has version %d, not %d: begin anew", position.version, VERSION
        )
        return None
    # a Raw is a view of what it was cut from
    return msgspec.structs.replace(position, judge=msgspec.Raw(bytes(position.judge)))


def read_boot_id(path: Path) -> str:
    """``/proc/sys/kernel/random/boot_id``; empty where there is none."""
    text = read_text(path, 256) or ""
    return text if text.isascii() else ""

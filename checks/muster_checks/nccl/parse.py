"""Parses the table of `all_reduce_perf`.

Format (nccl-tests): ``# … device N [bus] MODEL`` lines; a table whose rows start with the size in bytes and contain
time, algbw, busbw and #wrong, first out of place, then in place; ``# Out of bounds values : N OK|FAILED``.
"""

import re
from collections.abc import Sequence

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, number

TEXT_LIMIT_BYTES = 4 << 20
_DEVICE = re.compile(r"^#.*\bdevice +[0-9]+ +\[[^\]]{1,32}\] +(.{1,128}?)\s*$", re.M)
_BOUNDS = re.compile(r"^# Out of bounds values : +([0-9]{1,12}) +(OK|FAILED)", re.M)


class AllReduceRow(msgspec.Struct, frozen=True):
    """One message size: bus bandwidth of both modes, GB/s, and the number of wrong elements (None: not checked)."""

    size_bytes: int
    bus_gb_per_s: tuple[float, ...]
    wrong: int | None


class AllReduceRun(msgspec.Struct, frozen=True):
    models: tuple[str, ...]
    rows: tuple[AllReduceRow, ...]
    out_of_bounds: int | None


def parse(text: bytes) -> AllReduceRun:
    """Raises Unreadable if the text has no row of the table."""
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected the table of all_reduce_perf")
    whole = text.decode("utf-8", "replace")
    # a truncated row must not be taken for one of the older table, which has one column less
    columns = (13, 9) if re.search(r"^# +size.* root ", whole, re.M) else (12, 8)
    words = [line.split() for line in whole.splitlines()]
    rows = [row for each in words if len(each) in columns and (row := _row(each)) is not None]
    if not rows:
        raise Unreadable("no table of all_reduce_perf: expected rows of size, count, type, …, busbw")
    bounds = _BOUNDS.search(whole)
    return AllReduceRun(tuple(_DEVICE.findall(whole)), tuple(rows), int(bounds[1]) if bounds else None)


def _row(words: Sequence[str]) -> AllReduceRow | None:
    """``size count type redop root time algbw busbw #wrong [time algbw busbw #wrong]``; older tables lack ``root``."""
    if not (words[0].isdecimal() and words[1].isdecimal()) or not words[2].isalnum():
        return None
    size = integer(words[0])
    results = words[5:] if len(words) in (9, 13) else words[4:]
    ways = [results[start : start + 4] for start in range(0, len(results) - 3, 4)]
    speeds = [number(way[2]) for way in ways]
    wrongs = [integer(way[3]) for way in ways]
    if size is None or not ways:
        return None
    counts = [wrong for wrong in wrongs if wrong is not None]
    return AllReduceRow(size, tuple(s for s in speeds if s is not None and s >= 0), max(counts) if counts else None)

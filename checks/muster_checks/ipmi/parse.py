"""Parses the system event log and the sensors, as ipmitool prints them.

``sel elist``: ``ID | MM/DD/YYYY | HH:MM:SS[ ZONE] | sensor type and name | event | Asserted [| reading]``; entries
from before the clock was set say ``Pre-Init`` for a date. ``sensor``: ``name | value | unit | status | six limits``.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from muster_checks.base.bounded_read import Unreadable, number

TEXT_LIMIT_BYTES = 4 << 20
SENSOR_STATES = ("ok", "nc", "cr", "nr", "na", "ns")


class SelEntry(msgspec.Struct, frozen=True):
    """One line of the event log. at: by the BMC's clock; None before it was set. asserted: False if deasserted."""

    at: datetime | None
    sensor: str
    event: str
    asserted: bool


class Sensor(msgspec.Struct, frozen=True):
    """status: ok, nc (non-critical), cr (critical), nr (non-recoverable)."""

    name: str
    value: float | None
    unit: str
    status: str


def parse_log(text: bytes) -> list[SelEntry]:
    """Lines in any other form are skipped. Raises Unreadable if the text is longer than any log."""
    entries = []
    for columns in _rows(text):
        if len(columns) < 5 or not _is_identifier(columns[0]):
            continue
        pre = columns[1].lower().startswith("pre-init")
        at = None if pre else read_time(f"{columns[1]} {columns[2]}".encode())
        if at is None and not pre:
            continue
        asserted = len(columns) < 6 or not columns[5].lower().startswith("deassert")
        entries.append(SelEntry(at, columns[3], columns[4], asserted))
    return entries


def parse_sensors(text: bytes) -> list[Sensor]:
    """Threshold sensors only: the bits of discrete sensors differ between vendors."""
    return [
        Sensor(columns[0][:64], number(columns[1]), columns[2][:32], columns[3])
        for columns in _rows(text)
        if len(columns) == 10 and columns[0] and columns[3] in SENSOR_STATES
    ]


def read_time(text: bytes) -> datetime | None:
    """``11/21/2026 09:12:13``, with or without a time zone after it; the zone is ignored, as the BMC uses only one."""
    words = text.decode("utf-8", "replace").split()
    if len(words) < 2:
        return None
    try:
        moment = datetime.strptime(f"{words[0]} {words[1]}", "%m/%d/%Y %H:%M:%S")  # noqa: DTZ007 - compared with its own kind
    except ValueError:
        return None
    return moment + timedelta(hours=12) if "PM" in words[2:3] and moment.hour < 12 else moment


def newest(entries: Sequence[SelEntry]) -> datetime | None:
    return max((entry.at for entry in entries if entry.at is not None), default=None)


def _rows(text: bytes) -> list[list[str]]:
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected at most 4 MiB from ipmitool")
    lines = text.decode("utf-8", "replace").splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines if "|" in line]


def _is_identifier(text: str) -> bool:
    return 0 < len(text) <= 8 and all(c in "0123456789abcdefABCDEF" for c in text)

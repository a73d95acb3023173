"""Parses the system event log and the sensors, as ipmitool and FreeIPMI print them.

``sel elist``: ``ID | MM/DD/YYYY | HH:MM:SS[ ZONE] | sensor type and name | event | Asserted [| reading]``; entries
from before the clock was set say ``Pre-Init`` for a date. ``sensor``: ``name | value | unit | status | six limits``.

FreeIPMI, recorded only (ipmi-sel(8), ipmi-sensors(8) and output in published issues). ``ipmi-sel``:
``ID | Mon-DD-YYYY | HH:MM:SS | sensor name | sensor type | [state |] event [; more]``; it does not say whether an event
was asserted. ``ipmi-sensors``: ``ID | name | type | [state |] reading | unit | 'event'``.
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
        if entry := _free_entry(columns):
            entries.append(entry)
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
    rows = _rows(text)
    return [
        Sensor(columns[0][:64], number(columns[1]), columns[2][:32], columns[3])
        for columns in rows
        if len(columns) == 10 and columns[0] and columns[3] in SENSOR_STATES
    ] + [sensor for columns in rows if (sensor := _free_sensor(columns))]


def _free_entry(columns: Sequence[str]) -> SelEntry | None:
    if len(columns) not in (6, 7) or not columns[0].isdecimal():
        return None
    try:
        at = datetime.strptime(f"{columns[1]} {columns[2]}", "%b-%d-%Y %H:%M:%S")  # noqa: DTZ007 - compared with its own kind
    except ValueError:
        return None
    return SelEntry(at, f"{columns[4]} {columns[3]}", columns[-1].partition(" ; ")[0], asserted=True)


def _free_sensor(columns: Sequence[str]) -> Sensor | None:
    if len(columns) not in (6, 7) or not columns[0].isdecimal():
        return None
    value = number(columns[-3])
    if value is None:  # a discrete sensor
        return None
    state, event = columns[3] if len(columns) == 7 else "", columns[-1]
    if "Non-Recoverable" in event:
        status = "nr"
    elif state == "Critical" or " Critical" in event:
        status = "cr"
    else:
        status = "ok" if state == "Nominal" or event == "'OK'" else "nc"
    return Sensor(columns[1][:64], value, columns[-2][:32], status)


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

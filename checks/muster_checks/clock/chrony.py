"""Parses chronyd's view of the clock: the one line of `chronyc -n -c tracking` (chrony 2.4 and later).

Fields: reference (hex), its address, stratum, time of the reference, offset of the system clock, last offset, RMS
offset, frequency, residual frequency, skew, root delay, root dispersion, update interval, leap status. Seconds and ppm.
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, number

COMMAND = ("chronyc", "-n", "-c", "tracking")
FIELDS = 14
OWN_CLOCK = "7F7F0101"  # 127.127.1.1: the directive "local": chronyd serves its own clock as the reference
_LEAPS = {"Normal": 0, "Insert second": 1, "Delete second": -1, "Not synchronised": None}


class Tracking(msgspec.Struct, frozen=True):
    """max_error_s: bound of the error: |offset| + dispersion + delay / 2, as in chrony's manual."""

    synchronised: bool
    reference: str
    stratum: int
    offset_s: float
    max_error_s: float
    leap: int


def parse_tracking(text: bytes) -> Tracking:
    """Raises Unreadable."""
    fields = text.decode("utf-8", "replace").strip().split(",")
    if len(fields) != FIELDS or fields[-1] not in _LEAPS:
        raise Unreadable(f"{text[:80]!r}: expected the {FIELDS} fields of chronyc -c tracking")
    stratum, offset, delay, dispersion = integer(fields[2]), number(fields[4]), number(fields[10]), number(fields[11])
    if stratum is None or offset is None or delay is None or dispersion is None:
        raise Unreadable(f"{text[:80]!r}: a number is missing in the output of chronyc -c tracking")
    leap = _LEAPS[fields[-1]]
    return Tracking(
        synchronised=leap is not None and fields[0] != OWN_CLOCK,
        reference=fields[1] or fields[0],
        stratum=stratum,
        offset_s=offset,
        max_error_s=abs(offset) + dispersion + delay / 2,
        leap=leap or 0,
    )

"""Parses times by a layout of Go's package time, where an example stands for each part: ``2006-01-02T15:04:05Z07:00``.

Checked against that package's documentation (constants Layout … StampNano; "02", "_2" and "2"; fractions ".000" and
".999"; zones). Zone names are ignored: only the offset determines the time.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_FRACTION = r"[.,](?:0+|9+)(?![0-9])"
# if one part is a prefix of another, the longer comes first, as Go reads a layout
_PARTS: tuple[tuple[str, str], ...] = (
    ("January", rf"(?P<month_name>{_NAMES})"),
    ("Jan", r"(?P<month_name>[A-Za-z]{3})"),
    ("Monday", rf"(?:{_DAYS})"),
    ("Mon", r"[A-Za-z]{3}"),
    ("MST", r"[A-Z][A-Za-z]{2,4}(?:[-+][0-9]{1,2})?"),
    ("2006", r"(?P<year>[0-9]{4})"),
    ("-070000|-07:00:00|-0700|-07:00|-07", r"(?P<offset>[-+][0-9]{2}(?::?[0-9]{2}){0,2})"),
    ("Z070000|Z07:00:00|Z0700|Z07:00|Z07", r"(?P<offset>Z|[-+][0-9]{2}(?::?[0-9]{2}){0,2})"),
    ("01|1(?!5)", r"(?P<month>[0-9]{1,2})"),
    ("__2|002", r" {0,2}(?P<day_of_year>[0-9]{1,3})"),
    ("02|_2|2", r" ?(?P<day>[0-9]{1,2})"),
    ("15", r"(?P<hour>[0-9]{2})"),
    ("03|3", r"(?P<hour12>[0-9]{1,2})"),
    ("04|4", r"(?P<minute>[0-9]{1,2})"),
    ("05|5", r"(?P<second>[0-9]{1,2})"),
    ("06", r"(?P<year2>[0-9]{2})"),
    ("PM|pm", r"(?P<half>[AaPp][Mm])"),
)
_LAYOUT = re.compile(
    "|".join([f"(?P<fraction>{_FRACTION})", *(f"(?P<p{i}>{part})" for i, (part, _) in enumerate(_PARTS))])
)
_DAY_S = 86_400.0


def compile_layout(layout: str) -> Callable[[str, float], float | None]:
    """A parser for times in ``layout``: (text, now in seconds since the epoch) -> seconds since the epoch, or None.

    A time without a zone is local; without a year it is the latest such day that is not in the future.
    Raises ValueError for a layout without month, day and hour, or with a repeated part.
    """
    pattern, fraction, at = [], "", 0
    for found in _LAYOUT.finditer(layout):
        pattern.append(re.escape(layout[at : found.start()]))
        at = found.end()
        if found["fraction"] is not None:
            fraction = r"(?:[.,](?P<fraction>[0-9]{1,12}))?"
            pattern.append(fraction)
            continue
        index = next(i for i in range(len(_PARTS)) if found[f"p{i}"] is not None)
        pattern.append(_PARTS[index][1])
    pattern.append(re.escape(layout[at:]))
    whole = "".join(pattern)
    if not fraction:  # Go accepts a fraction after the seconds even if the layout has none
        seconds = r"(?P<second>[0-9]{1,2})"
        whole = whole.replace(seconds, seconds + r"(?:[.,](?P<fraction>[0-9]{1,12}))?")
    try:
        compiled = re.compile(whole, re.ASCII)
    except re.error:
        raise ValueError("a part occurs twice") from None
    names = compiled.groupindex.keys()
    if not ("day_of_year" in names or ("day" in names and names & {"month", "month_name"})) or not names & {
        "hour",
        "hour12",
    }:
        raise ValueError("expected a layout of Go's package time with month, day and hour, as Jan _2 15:04:05")

    def read(text: str, now: float) -> float | None:
        found = compiled.fullmatch(text)
        if found is None:
            return None
        try:
            return _moment(found.groupdict(), now)
        except (ValueError, OverflowError, OSError):  # e.g. 31 February, or the year 0
            return None

    return read


def _moment(parts: dict[str, str | None], now: float) -> float:
    def number(name: str, default: int = 0) -> int:
        return int(parts.get(name) or default)

    named = (parts.get("month_name") or "")[:3].lower()
    month = _MONTHS.index(named) + 1 if named else number("month", 1)
    hour = number("hour") if parts.get("hour") else number("hour12") % 12
    if (parts.get("half") or "").lower() == "pm":
        hour += 12
    micros = int((parts.get("fraction") or "0").ljust(6, "0")[:6])
    zone = _zone(parts.get("offset"))

    def in_year(year: int) -> float:
        day, later = number("day", 1), timedelta()
        if parts.get("day_of_year"):
            day, later = 1, timedelta(days=number("day_of_year") - 1)
        moment = datetime(year, month, day, hour, number("minute"), number("second"), micros, tzinfo=zone)
        return (moment + later).timestamp()

    if parts.get("year"):
        return in_year(number("year"))
    if parts.get("year2"):  # as in Go, 69 to 99 are of the last century
        short = number("year2")
        return in_year(short + (1900 if short >= 69 else 2000))
    return _yearless(in_year, now)


def _yearless(in_year: Callable[[int], float], now: float) -> float:
    newest = datetime.fromtimestamp(now, UTC).year + 1  # the local New Year may be earlier
    for year in range(newest, newest - 6, -1):  # 29 February: up to four years back
        try:
            moment = in_year(year)
        except ValueError:
            continue
        if moment <= now + _DAY_S:
            return moment
    raise ValueError("no such day")


def _zone(offset: str | None) -> timezone | None:
    """None: the local time of this process."""
    if offset is None:
        return None
    if offset == "Z":
        return UTC
    digits = offset[1:].replace(":", "").ljust(6, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:6]))
    return timezone(-ahead if offset[0] == "-" else ahead)

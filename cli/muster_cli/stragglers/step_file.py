"""Step times as CSV: a header with the columns rank, step, seconds, and perhaps stage and work, in any order, beside
others.
"""

import csv
import math
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TextIO

from muster_cli.stragglers.step_table import StepTable
from muster_cli.usage import UsageError

COLUMNS = ("rank", "step", "seconds")
STAGE, WORK = "stage", "work"  # may be absent
LINE_LIMIT = 64 << 10  # characters
WHOLE_LIMIT = 1 << 53
SECONDS_LIMITS = 1e-9, 1e9
WORK_LIMITS = 1e-9, 1e18


def read_step_file(file: Path, opened: BufferedReader, table: StepTable) -> None:
    """Add the times of one file, and close it. Raises UsageError with file and line, OSError."""
    with TextIOWrapper(opened, encoding="utf-8-sig", errors="replace", newline="") as text:
        lines = _Lines(text)
        reader = csv.reader(lines, strict=True)
        try:
            places = _header(next(reader, []))
            for row in reader:
                if row:
                    table.add(*_times(row, places))
        except (UsageError, csv.Error) as error:
            raise UsageError(f"{file}:{max(lines.number, 1)}: {error}") from None


class _Lines:
    """Lines of bounded length. number: of the last one that was read, from 1."""

    def __init__(self, text: TextIO) -> None:
        self.text, self.number = text, 0

    def __iter__(self) -> Iterator[str]:
        while line := self.text.readline(LINE_LIMIT):
            self.number += 1
            if len(line) == LINE_LIMIT:
                raise UsageError(f"a line of {LINE_LIMIT} characters or more; expected CSV")
            yield line


def _header(row: list[str]) -> dict[str, int]:
    """The places of the columns."""
    names = [name.strip() for name in row]
    for name in COLUMNS:
        if names.count(name) != 1:
            found = ", ".join(repr(each[:40]) for each in names[:12])
            raise UsageError(f"columns: found {found or 'none'}; expected one each of {', '.join(COLUMNS)}")
    for name in (STAGE, WORK):
        if names.count(name) > 1:
            raise UsageError(f"columns: found {names.count(name)} of the name {name}; expected one at most")
    return {name: names.index(name) for name in (*COLUMNS, STAGE, WORK) if name in names}


def _times(row: list[str], places: dict[str, int]) -> tuple[int, int, float, int | None, float | None]:
    if len(row) <= max(places.values()):
        raise UsageError(f"{len(row)} values; expected as many as the header has columns")
    found = {name: row[place].strip() for name, place in places.items()}
    return (
        _whole("rank", found["rank"]),
        _whole("step", found["step"]),
        _number("seconds", found["seconds"], SECONDS_LIMITS),
        _whole(STAGE, found[STAGE]) if STAGE in found else None,
        _number(WORK, found[WORK], WORK_LIMITS) if WORK in found else None,
    )


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > WHOLE_LIMIT:
        raise UsageError(f"{name}: {text[:40]!r}; expected a whole number from 0 to 2^53")
    return int(text)


def _number(name: str, text: str, limits: tuple[float, float]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    least, most = limits
    if not least <= number <= most:
        raise UsageError(f"{name}: {text[:40]!r}; expected a number from {least} to {most:g}")
    return number

"""Fault files of `muster simulate`: CSV with the columns node, start, end and class, in the order of start.

They are read twice, once to check them and once for each run, and never held in memory: ten million rows need no more
than the names of the nodes. :mod:`muster_tainter.simulation.scenario.public_traces` reads other formats.
"""

import csv
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from muster_kube.api.times import rfc3339_whole
from muster_tainter.simulation.scenario.fleet_file import (
    CHECK,
    COMPONENT,
    LATEST,
    NO_CHECKS,
    REASON,
    FleetError,
    require_heavy,
)
from muster_tainter.simulation.scenario.node_groups import NODES_LIMIT

COLUMNS = ("node", "start", "end", "class")
OPTIONAL = ("component", "check", "reason", "fatal", "hidden")
CLASSES = ("reset", "reboot", "replace", "contact")
LINE_LIMIT = 64 << 10  # characters
PROBLEMS_LIMIT = 10
COMPONENTS_LIMIT = 500_000  # in memory while the file is checked, for the end of the last fault of each
UNTIL_REPAIRED = float("inf")
_YES_OR_NO = {"yes": True, "true": True, "no": False, "false": False}


class FaultRow(NamedTuple):
    """start, end: seconds since the epoch; end UNTIL_REPAIRED: until the policy or a person repairs it.

    fatal: it ends the job on the node at once. hidden: only its check, a heavy one, finds it, when it runs. number: of
    the row, from 1; the seed of what happens to it.
    """

    number: int
    node: str
    start: float
    end: float
    fault_class: str
    component: str = "gpu/0"
    check: str = "dmesg"
    reason: str = ""
    fatal: bool = True
    hidden: bool = False


@dataclass
class FaultSummary:
    """begin, end: seconds since the epoch of the first start and the last start or end; rows; nodes: names in the order
    of appearance; notes: for people, how the file was read."""

    begin: float = 0.0
    end: float = 0.0
    rows: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class FaultHistory(Protocol):
    """Faults in the order of start."""

    @property
    def summary(self) -> FaultSummary: ...

    def rows(self) -> Iterator[FaultRow]:
        """From the first one, each time it is called. Raises FleetError, OSError."""


class RecordedFaults:
    """Faults that fit into memory: of a trace in another format, or generated."""

    def __init__(self, rows: list[FaultRow], notes: tuple[str, ...] = ()) -> None:
        self._rows = sorted(rows, key=lambda row: (row.start, row.node, row.component))
        self.summary = FaultSummary(notes=notes)
        for row in self._rows:
            _count(self.summary, row)

    def rows(self) -> Iterator[FaultRow]:
        return iter(self._rows)


class FaultFile:
    """A CSV file, checked when it is opened. known: the nodes that it may name; None: any. Raises FleetError and
    OSError."""

    def __init__(self, path: Path, known: Collection[str] | None = None) -> None:
        self._path = path
        self.summary = FaultSummary()
        problems: list[str] = []
        ends: dict[tuple[str, str], tuple[float, int]] = {}  # of the last fault of a component: its end, its line
        latest, latest_line = 0.0, 0
        for line, row in self._read(problems):
            node, start, end = row.node, row.start, row.end
            if known is not None and node not in known:
                problems.append(f"{path}:{line}: node: {node[:80]!r}: expected a node of the fleet file")
            elif start < latest:
                problems.append(
                    f"{path}:{line}: start: {rfc3339_whole(start)}: expected the rows in the order of start; line "
                    f"{latest_line} has {rfc3339_whole(latest)}"
                )
            else:
                before, before_line = ends.get((node, row.component), (0.0, 0))
                if start < before < UNTIL_REPAIRED:
                    problems.append(
                        f"{path}:{line}: start: {rfc3339_whole(start)}: {node} {row.component}: expected a time not "
                        f"before {rfc3339_whole(before)}, the end in line {before_line}: faults of one component may "
                        "not overlap"
                    )
                latest, latest_line = start, line
                ends[node, row.component] = (end, line)
                _count(self.summary, row)
            if len(self.summary.nodes) > NODES_LIMIT:
                problems.append(f"{path}:{line}: node: {node[:80]!r}: expected at most {NODES_LIMIT} different nodes")
                break
            if len(ends) > COMPONENTS_LIMIT:
                problems.append(
                    f"{path}:{line}: component: {row.component}: expected at most {COMPONENTS_LIMIT} different ones "
                    "on all nodes"
                )
                break
            if len(problems) >= PROBLEMS_LIMIT:
                break
        if problems:
            raise FleetError("\n".join(problems[:PROBLEMS_LIMIT]))
        if not self.summary.rows:
            raise FleetError(f"{path}:1: no faults; expected at least one row")

    def rows(self) -> Iterator[FaultRow]:
        problems: list[str] = []
        for _, row in self._read(problems):
            yield row
        if problems:
            raise FleetError("\n".join(problems))  # it has changed since it was checked

    def _read(self, problems: list[str]) -> Iterator[tuple[int, FaultRow]]:
        """Rows with their lines. What cannot be read goes to ``problems``."""
        with open_text(self._path) as text:
            lines = BoundedLines(text)
            reader = csv.reader(lines.texts(), strict=True)
            try:
                places = _header(next(reader, []))
                number = 0
                for values in reader:
                    if not values:
                        continue
                    number += 1
                    try:
                        row = _row(number, values, places)
                    except ValueError as error:
                        problems.append(f"{self._path}:{lines.number}: {error}")
                        if len(problems) >= PROBLEMS_LIMIT:
                            return
                    else:
                        yield lines.number, row
            except (ValueError, csv.Error, UnicodeError) as error:
                problems.append(f"{self._path}:{max(lines.number, 1)}: {error}")


class BoundedLines:
    """Lines of bounded length. number: of the last one that was read, from 1."""

    def __init__(self, text: TextIO) -> None:
        self._text, self.number = text, 0

    def texts(self) -> Iterator[str]:
        while line := self._text.readline(LINE_LIMIT):
            self.number += 1
            if len(line) == LINE_LIMIT:
                raise ValueError(f"a line of {LINE_LIMIT} characters or more; expected CSV")
            yield line


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file, also if it is compressed (.gz, .xz). Raises OSError, and FleetError if it does not decompress."""
    opened: Callable[..., TextIO] = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)  # type: ignore[assignment]
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as text:
            yield text
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise FleetError(f"{path}: {error}: expected a whole compressed file") from None


def _count(summary: FaultSummary, row: FaultRow) -> None:
    if not summary.rows:
        summary.begin = row.start
    summary.rows += 1
    last = row.start if row.end == UNTIL_REPAIRED else row.end
    summary.end = max(summary.end, last)
    summary.nodes[row.node] = summary.nodes.get(row.node, 0) + 1


def _header(values: list[str]) -> dict[str, int]:
    names = [name.strip() for name in values]
    for name in COLUMNS:
        if names.count(name) != 1:
            found = ", ".join(repr(each[:40]) for each in names[:12]) or "none"
            raise ValueError(f"columns: found {found}; expected one each of {', '.join(COLUMNS)}")
    for name in names:
        if name not in (*COLUMNS, *OPTIONAL):
            raise ValueError(f"column {name[:40]!r}: expected {', '.join((*COLUMNS, *OPTIONAL))}")
    return {name: place for place, name in enumerate(names)}


def _row(number: int, values: list[str], places: dict[str, int]) -> FaultRow:
    if len(values) != len(places):
        raise ValueError(f"{len(values)} values; expected {len(places)}, as many as the header has columns")

    def value(name: str, default: str = "") -> str:
        place = places.get(name)
        return (values[place].strip() if place is not None else "") or default

    node = value("node")
    if not node:
        raise ValueError("node: empty; expected a name")
    start = read_time("start", value("start"))
    text = value("end")
    end = read_time("end", text) if text else UNTIL_REPAIRED
    if end <= start:
        raise ValueError(f"end: {text[:40]}: expected a time after the start, {value('start')[:40]}")
    fault_class = value("class")
    if fault_class not in CLASSES:
        raise ValueError(f"class: {fault_class[:40]!r}: expected one of {', '.join(CLASSES)}")
    component, check, reason = value("component", "gpu/0"), value("check", "dmesg"), value("reason")
    for name, text, form in (("component", component, COMPONENT), ("check", check, CHECK), ("reason", reason, REASON)):
        if not re.fullmatch(form, text):
            raise ValueError(f"{name}: {text[:40]!r}: expected text that matches {form}")
    if check in NO_CHECKS:
        raise ValueError(f"check: {check}: expected a check that agents run")
    fatal, hidden = (_yes_or_no(name, value(name, default)) for name, default in (("fatal", "yes"), ("hidden", "no")))
    if hidden:
        require_heavy(check)
    return FaultRow(number, node, start, end, fault_class, component, check, reason, fatal, hidden)


def _yes_or_no(name: str, text: str) -> bool:
    found = _YES_OR_NO.get(text.lower())
    if found is None:
        raise ValueError(f"{name}: {text[:40]!r}: expected yes or no")
    return found


def read_time(name: str, text: str) -> float:
    """Whole seconds since the epoch. Raises ValueError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}: {text[:40]!r}: expected a time such as 2026-01-01T08:30:00Z") from None
    if at.tzinfo is None:
        raise ValueError(f"{name}: {text[:40]!r}: expected a time with its zone, such as 08:30:00Z or 08:30:00+02:00")
    second = at.timestamp()
    if not 0 <= second < LATEST:
        raise ValueError(f"{name}: {text[:40]!r}: expected a time from 1970 to 2199")
    return float(int(second))

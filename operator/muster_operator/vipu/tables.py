"""Parses the published tables of the ``vipu`` command.

`vipu list partitions`: graphcore/demo-in-a-box, jupyter-docker/README.md. `vipu list allocations`: docs.graphcore.ai,
vipu-user, allocations. A line of dashes follows the header and ends the table, which detects a truncated table. Columns
are found by name, so there may be others.
"""

import re
from collections.abc import Mapping, Sequence

from muster_operator.vipu.controller import PartitionState, VipuPartition

_DASHES = re.compile(r"-{3,}")
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
# ACTIVE is published, poprun logs PS_ACTIVE; the others are the simulator's
_STATES: Mapping[str, PartitionState] = {
    "ACTIVE": "ACTIVE",
    "CREATING": "CREATING",
    "RESETTING": "RESETTING",
    "REMOVING": "REMOVING",
    "ERROR": "ERROR",
}


class TableError(Exception):
    """The expected format, and the line found."""


def parse_partitions(text: str) -> tuple[VipuPartition, ...]:
    """The partitions in the output of `vipu list partitions`, without the addresses of their IPUs. Raises
    TableError."""
    found: dict[str, VipuPartition] = {}
    for name, size, gcds, word in _read_rows(text, ("Partition", "Size", "GCDs", "State")):
        if name in found:
            raise TableError(f"partition {_shorten(name)} is listed twice")
        state = _STATES.get(word.removeprefix("PS_"), "OTHER")
        message = "" if state == "ACTIVE" else f"V-IPU reports {_shorten(word)}"
        found[name] = VipuPartition(name, _parse_number("Size", size), _parse_number("GCDs", gcds), state, (), message)
    return tuple(found.values())


def parse_allocations(text: str) -> tuple[frozenset[str], ...]:
    """The agents of each allocation in the output of `vipu list allocations`; each agent counts once. Raises
    TableError."""
    known: set[str] = set()
    allocations = []
    for _, agents in _read_rows(text, ("Allocation ID", "Agents")):
        fresh = frozenset(agents.split()) - known
        known |= fresh
        allocations.append(fresh)
    return tuple(allocations)


def _read_rows(text: str, columns: Sequence[str]) -> list[list[str]]:
    """The cells of these columns, row by row; the first cell is never empty."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if lines and _DASHES.fullmatch(lines[0]):
        del lines[0]
    if len(lines) < 2 or not _DASHES.fullmatch(lines[1]) or not _DASHES.fullmatch(lines[-1]):
        found = _shorten(lines[-1]) if lines else "nothing"
        raise TableError(f"expected a header, a line of dashes, rows and a line of dashes; the last line is {found}")
    header = _split_cells(lines[0])
    places = []
    for column in columns:
        if header.count(column) != 1:
            raise TableError(f"expected one column {column!r} in the header, found {_shorten(lines[0])}")
        places.append(header.index(column))
    rows = []
    for line in lines[2:-1]:
        cells = _split_cells(line)
        if len(cells) != len(header) or not cells[places[0]]:
            raise TableError(f"expected {len(header)} cells with a value for {columns[0]!r}; found {_shorten(line)}")
        rows.append([cells[place] for place in places])
    return rows


def _split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _parse_number(column: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise TableError(f"{column}: {_shorten(text)}: expected a number of at least 1")
    return int(text)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:119] + "…")

"""gc-monitor's tables: the IPUs it sees, and the temperatures of those that an application uses.

Source: docs.graphcore.ai, command-line-tools, gc-monitor; github.com/argonne-lcf/user-guides (IPUs attached from other
namespaces). Addresses are truncated to fit the table ("...31.100.130"), so IPUs are identified by their id. Columns are
found by their heading. Without an active partition the tool crashes with a segmentation fault (same guide).
"""

import re
from collections.abc import Iterator

import msgspec

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.graphcore import component_of
from muster_checks.graphcore.tools.words import lines, name, word

_PARTITION = re.compile(r"\bpartition:? (\S{1,128})", re.I)


class MonitorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One IPU in one table. Sensors are None in the table of devices, and if the application does not read them."""

    device_id: str
    component: str
    partition: str = ""
    clock_mhz: float | None = None
    die_temp_c: float | None = None
    board_temp_c: float | None = None
    board_power_w: float | None = None


def split_rows(text: bytes) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each row of each table: the table's title line, and the row's cells by heading. Each title is also returned once
    without cells, even if the table is empty."""
    title = ""
    heading: list[str] = []
    for line in lines(text):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "ID" in cells:
            heading = cells
        elif heading and len(cells) == len(heading):
            yield title, list(zip(heading, cells, strict=True))
        else:
            title, heading = line, []
            yield title, []


def parse(text: bytes) -> list[MonitorRow]:
    """A row per IPU and table; none if a table says that nothing is attached. Raises Unreadable."""
    seen: list[MonitorRow] = []
    tables = False
    for title, cells in split_rows(text):
        tables = tables or "gc-monitor" in title or "ttached" in title
        found = _PARTITION.search(title)
        if cells and (row := _row(cells, name(found[1]) if found else "")):
            seen.append(row)
    if not seen and not tables:
        raise Unreadable("gc-monitor: no table of IPUs found")
    return seen


def _row(cells: list[tuple[str, str]], partition: str) -> MonitorRow | None:
    values: dict[str, str] = {}
    for title, cell in cells:
        # the first temperature is the IPU's, the second the board's
        values["board temp" if title == "Temp" and "Temp" in values else title] = cell
    if not name(values["ID"]).isdigit():
        return None
    host = name(values.get("IPU-M"))
    return MonitorRow(
        device_id=values["ID"],
        component=component_of(
            "" if host.startswith("...") else host, name(values.get("IPU#")), name(values.get("PCIe ID")), values["ID"]
        ),
        partition=partition,
        clock_mhz=number(word(values.get("Clock"))),
        die_temp_c=number(word(values.get("Temp"))),
        board_temp_c=number(word(values.get("board temp"))),
        board_power_w=number(word(values.get("Power"))),
    )

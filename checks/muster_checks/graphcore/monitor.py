"""gc-monitor's tables: which IPUs it sees, and how warm those are that an application is attached to.

Source: docs.graphcore.ai, command-line-tools, gc-monitor; github.com/argonne-lcf/user-guides (IPUs attached from other
namespaces). Addresses are cut to fit the table ("...31.100.130"), so IPUs are told apart by their id. Columns are found
by their heading. With no active partition the tool dies of a segmentation fault (same guide).
"""

import re

import msgspec

from muster_checks.graphcore import component_of
from muster_checks.graphcore.words import lines, name, word
from muster_checks.reading import Unreadable, number

_PARTITION = re.compile(r"\bpartition:? (\S{1,128})", re.I)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One IPU in one table. Sensors are None in the table of devices, and where the application does not read them."""

    device_id: str
    component: str
    partition: str = ""
    clock_mhz: float | None = None
    die_temp_c: float | None = None
    board_temp_c: float | None = None
    board_power_w: float | None = None


def parse(text: bytes) -> list[Seen]:
    """A row for each IPU and table; none where a table says that nothing is attached. Raises Unreadable."""
    seen: list[Seen] = []
    heading: list[str] = []
    partition, tables = "", False
    for line in lines(text):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "ID" in cells:
            heading = cells
        elif heading and len(cells) == len(heading):
            if row := _row(heading, cells, partition):
                seen.append(row)
        else:  # the title of a table
            heading = []
            found = _PARTITION.search(line)
            partition = name(found[1]) if found else ""
            tables = tables or "gc-monitor" in line or "ttached" in line
    if not seen and not tables:
        raise Unreadable("gc-monitor: no table of IPUs in it")
    return seen


def _row(heading: list[str], cells: list[str], partition: str) -> Seen | None:
    values: dict[str, str] = {}
    for title, cell in zip(heading, cells, strict=True):
        # the first temperature is the IPU's, the second the board's
        values["board temp" if title == "Temp" and "Temp" in values else title] = cell
    if not name(values["ID"]).isdigit():
        return None
    host = name(values.get("IPU-M"))
    return Seen(
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

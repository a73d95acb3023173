"""`vipu list partitions`: the state of each V-IPU partition.

Source: github.com/graphcore/demo-in-a-box. Columns are found by their heading: vipu-admin prints others before them.

     Partition   | Cluster  | ILDs | GW Routing | ILD Routing | Size | GCDs | State
    ---------------------------------------------------------------------------------
     p64         | c64_1-16 | 1    | DEFAULT    | RINGSWNC    | 64   | 1    | ACTIVE
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.graphcore.tools.words import lines, name, word

ACTIVE = ("ACTIVE", "PS_ACTIVE")  # in the command line's output, and in the API


class ListedPartition(msgspec.Struct, frozen=True):
    """``state``: ACTIVE once its IPUs can be used; empty if it could not be read."""

    name: str
    state: str
    size: float | None


def parse(text: bytes) -> list[ListedPartition]:
    """Raises Unreadable."""
    heading: list[str] = []
    found = []
    for line in lines(text):
        cells = [cell.strip() for cell in line.split("|")]
        if "Partition" in cells and "State" in cells:
            heading = cells
        elif heading and len(cells) == len(heading):
            values = dict(zip(heading, cells, strict=True))
            if partition := name(values["Partition"]):
                found.append(ListedPartition(partition, word(values["State"]).upper(), number(values.get("Size"))))
    if not heading:
        raise Unreadable("vipu list partitions: no table of partitions found")
    return found

"""Maps DCGM's GPU numbers to PCI addresses: `dcgmi discovery -l`.

Its table has a row "| 0 | Name: … |" for each GPU, followed by "PCI Bus ID: 00000000:18:00.0" (DCGM user guide).
"""

import re
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from muster_checks.base.declaration import NodeView
from muster_checks.dcgm.program import find_dcgmi
from muster_checks.hardware.pci import normal_address

TIMEOUT_S = 30.0
_ROW = re.compile(r"^\|\s*(\d{1,3})?\s*\|\s*(?:PCI Bus ID:\s*([0-9a-fA-F:.]{7,16}))?.*$")

_listed: "WeakKeyDictionary[NodeView, dict[int, str]]" = WeakKeyDictionary()


def parse(text: str) -> dict[int, str]:
    """PCI addresses by DCGM's numbers."""
    addresses: dict[int, str] = {}
    number: int | None = None
    for line in text[: 1 << 20].splitlines():
        if line.startswith("+"):
            number = None
        elif (row := _ROW.fullmatch(line.rstrip()[:200])) is not None:
            number = int(row[1]) if row[1] else number
            if row[2] and number is not None:
                addresses[number] = normal_address(row[2])
    return addresses


async def read_addresses(node: NodeView, host: Sequence[str] = ()) -> dict[int, str]:
    """The addresses that dcgmi lists or, if it fails, has listed last, so that a finding keeps its component. Empty if
    it never did; findings then contain DCGM's numbers. host: its option --host."""
    dcgmi = find_dcgmi(node) or ("dcgmi",)
    output = await node.commands.run((*dcgmi, "discovery", "-l", *host), timeout_s=TIMEOUT_S)
    if output.ok:
        _listed[node] = parse(output.stdout.decode("utf-8", "replace"))
    return _listed.get(node, {})

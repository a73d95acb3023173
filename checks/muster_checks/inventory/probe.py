"""Reads a node's devices and the operator's list of expected devices."""

from pathlib import Path

import msgspec
import yaml

from muster_checks.base.bounded_read import names_in
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.hardware.pci import pci_devices
from muster_checks.inventory import InventoryParameters
from muster_checks.inventory.judge import ExpectedDevices, PresentDevices, judge

FILE_LIMIT_BYTES = 1 << 20


async def probe(node: NodeView, parameters: InventoryParameters) -> list[Finding]:
    if parameters.expected is None:
        raise NotHere("no expected devices configured: set the parameter expected", "NothingExpected")
    rows = load_expected(parameters.expected)
    present = await in_thread(node, read_devices, node)
    return [judge(row, present) for row in rows]


def read_devices(node: NodeView) -> PresentDevices:
    """Raises CannotTell if /sys cannot be read, because no device may be reported as missing then."""
    if not node.path("/sys/class/net").is_dir():
        raise CannotTell("/sys/class cannot be read", "NotReadable")
    return PresentDevices(
        pci={device.address: f"{device.vendor:04x}:{device.device:04x}" for device in pci_devices(node)},
        block=names_in(node.path("/sys/block")),
        net=names_in(node.path("/sys/class/net")),
        infiniband=names_in(node.path("/sys/class/infiniband")),
    )


def load_expected(path: Path) -> tuple[ExpectedDevices, ...]:
    """Raises CannotTell with the error: an invalid file of the operator must not be ignored."""
    try:
        with path.open("rb") as file:
            rows = msgspec.convert(yaml.safe_load(file.read(FILE_LIMIT_BYTES)) or [], list[ExpectedDevices])
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise CannotTell(f"{path}: {error}", "BadExpectations") from None
    for place, row in enumerate(rows):
        if row.kind not in ("pci", "block", "net", "infiniband"):
            raise CannotTell(
                f"{path}: [{place}].kind: {row.kind!r}: expected pci, block, net or infiniband", "BadExpectations"
            )
    return tuple(rows)

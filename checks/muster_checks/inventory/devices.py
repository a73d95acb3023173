"""Counts a node's devices and compares them with what should be there."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import yaml

from muster_checks.base.bounded_read import names_in
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.pci import pci_devices
from muster_checks.inventory import InventoryParameters

FILE_LIMIT_BYTES = 1 << 20


class ExpectedDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` devices of ``kind`` whose name fits ``match``: ``10de:2330`` for PCI, else ``nvme*``, ``mlx5_*``."""

    kind: str
    match: str
    count: int


class PresentDevices(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. pci: ``vendor:device`` by address; the others by name."""

    pci: Mapping[str, str]
    block: Sequence[str] = ()
    net: Sequence[str] = ()
    infiniband: Sequence[str] = ()


async def probe(node: NodeView, parameters: InventoryParameters) -> list[Finding]:
    if parameters.expected is None:
        raise NotHere("nobody said which devices to expect (parameter expected)", "NothingExpected")
    return [judge(row, read_devices(node)) for row in load_expected(parameters.expected)]


def read_devices(node: NodeView) -> PresentDevices:
    """Raises CannotTell where /sys cannot be read: no device may be called missing then."""
    if not node.path("/sys/class/net").is_dir():
        raise CannotTell("/sys/class cannot be read", "NotReadable")
    return PresentDevices(
        pci={device.address: f"{device.vendor:04x}:{device.device:04x}" for device in pci_devices(node)},
        block=names_in(node.path("/sys/block")),
        net=names_in(node.path("/sys/class/net")),
        infiniband=names_in(node.path("/sys/class/infiniband")),
    )


def load_expected(path: Path) -> tuple[ExpectedDevices, ...]:
    """Raises CannotTell with what is wrong: a file that its operator meant must not be passed over."""
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


def judge(row: ExpectedDevices, devices: PresentDevices) -> Finding:
    names: Sequence[str]
    if row.kind == "pci":
        names = [address for address, ids in devices.pci.items() if fnmatchcase(ids, row.match.casefold())]
    else:
        names = [name for name in getattr(devices, row.kind) if fnmatchcase(name, row.match)]
    short = len(names) < row.count
    return Finding(
        component=f"{row.kind}/{row.match}"[:128],
        verdict=Verdict.FAIL if short else Verdict.PASS,
        reason="DevicesMissing" if short else "DevicesPresent",
        message=shorten(f"{len(names)} of {row.count} {row.kind} devices {row.match}: {', '.join(names) or 'none'}"),
        fault_class=FaultClass.CONTACT if short else FaultClass.NONE,
        measurements=(Measurement("devices", len(names), "", row.count),),
    )

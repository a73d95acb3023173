"""Lists a node's devices and compares them with what should be there, and with what was there before.

A device is known by what does not change when it comes back: its PCI address, or its name in /sys/class.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import yaml

from muster_checks.declaration import NodeView
from muster_checks.inventory import InventoryParameters
from muster_checks.pci import Kind, pci_devices
from muster_checks.reading import names_in
from muster_checks.running import CannotTell
from muster_checks.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten

WATCHED = (Kind.GPU, Kind.IPU, Kind.ACCELERATOR, Kind.NIC, Kind.NVME, Kind.NVSWITCH)
_WORD = {Kind.ACCELERATOR: "gpu", Kind.NVME: "disk"}
FILE_LIMIT_BYTES = 1 << 20


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` devices of ``kind`` whose name fits ``match``: ``10de:2330`` for PCI, else ``nvme*``, ``mlx5_*``."""

    kind: str
    match: str
    count: int


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """pci: by address, its ``vendor:device``; watched: components by PCI address, of the kinds that matter."""

    pci: Mapping[str, str]
    watched: Mapping[str, str]
    block: Sequence[str] = ()
    net: Sequence[str] = ()
    infiniband: Sequence[str] = ()


async def probe(node: NodeView, parameters: InventoryParameters) -> list[Finding]:
    devices = read_devices(node)
    expected = load_expected(parameters.expected)
    missed = count_missed(devices, {name: series.latest or 0 for name, series in node.history.of("inventory").items()})
    node.history.note("inventory", missed)
    return judge(devices, expected, missed, parameters.confirmations)


def read_devices(node: NodeView) -> Devices:
    """Raises CannotTell where there is no PCI bus to look at."""
    found = pci_devices(node)
    if not found and not node.path("/sys/bus/pci/devices").is_dir():
        raise CannotTell("/sys/bus/pci/devices cannot be read", "NotReadable")
    return Devices(
        pci={device.address: f"{device.vendor:04x}:{device.device:04x}" for device in found},
        watched={
            device.address: f"{_WORD.get(device.kind, device.kind.value)}/{device.address}"
            for device in found
            if device.kind in WATCHED
        },
        block=names_in(node.path("/sys/block")),
        net=names_in(node.path("/sys/class/net")),
        infiniband=names_in(node.path("/sys/class/infiniband")),
    )


def load_expected(path: Path | None) -> tuple[Expected, ...]:
    """Raises CannotTell with what is wrong: a file that its operator meant must not be passed over."""
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            rows = msgspec.convert(yaml.safe_load(file.read(FILE_LIMIT_BYTES)) or [], list[Expected])
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise CannotTell(f"{path}: {error}", "BadExpectations") from None
    for place, row in enumerate(rows):
        if row.kind not in ("pci", "block", "net", "infiniband"):
            raise CannotTell(
                f"{path}: [{place}].kind: {row.kind!r}: expected pci, block, net or infiniband", "BadExpectations"
            )
    return tuple(rows)


def count_missed(devices: Devices, earlier: Mapping[str, float]) -> dict[str, float]:
    """In how many runs in a row each device ever seen was not there."""
    here = set(devices.watched.values())
    return dict.fromkeys(here, 0.0) | {name: count + 1 for name, count in earlier.items() if name not in here}


def judge(
    devices: Devices, expected: Sequence[Expected], missed_runs: Mapping[str, float], confirmations: int
) -> list[Finding]:
    """What is missing of what should be there, and what has gone since it was first seen."""
    findings = [_expectation(row, devices) for row in expected]
    for component, missed in sorted(missed_runs.items()):
        if not missed:
            findings.append(
                Finding(component=component, verdict=Verdict.PASS, reason="Present", message="on the PCI bus")
            )
            continue
        gone = missed >= confirmations
        findings.append(
            Finding(
                component=component,
                verdict=Verdict.FAIL if gone else Verdict.UNKNOWN,
                reason="DeviceGone" if gone else "DeviceMissed",
                message=f"was on the PCI bus and is no longer, for {missed:g} runs: see the kernel log; reboot",
                fault_class=FaultClass.REBOOT if gone else FaultClass.NONE,
                measurements=(Measurement("runs_missed", missed, "", confirmations),),
            )
        )
    return findings


def _expectation(row: Expected, devices: Devices) -> Finding:
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

"""Compares a node's devices with the expected ones."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten


class ExpectedDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` devices of ``kind`` whose name matches ``match``: ``10de:2330`` for PCI, else ``nvme*``, ``mlx5_*``."""

    kind: str
    match: str
    count: int


class PresentDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The node's devices. pci: ``vendor:device`` by address; the others by name."""

    pci: Mapping[str, str]
    block: Sequence[str] = ()
    net: Sequence[str] = ()
    infiniband: Sequence[str] = ()


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

"""`gc-info -l`: lists the IPUs. Needs no exclusive access.

Source: docs.graphcore.ai, command-line-tools, gc-info; the PCIe form: graphcore/tensorflow.

    Graphcore device listing:
    Partition: p1 [active]
    -+- Id: [0], target: [Fabric], IPU-M host: [10.1.5.10], IPU#: [3]
    -+- Id: [4], target: [Multi IPU]
     |--- Id: [0], DNC Id: [0], IPU-M host: [10.1.5.10], IPU#: [3]

    -+- Id:  [0], type:      [PCIe], PCI Domain: [0000:1a:00.0]
"""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.graphcore import component_of
from muster_checks.graphcore.tools.attributes import DEVICES_LIMIT
from muster_checks.graphcore.tools.words import lines, name

_VALUE = re.compile(r"([A-Za-z][A-Za-z# -]{0,30}):\s*\[([^\[\]]{0,128})\]")
_PARTITION = re.compile(r"Partition: (\S{1,128})")


class IpuDevice(msgspec.Struct, frozen=True):
    """One IPU. ``device_id``: as the tools accept it with -d; ``pci``: empty for an IPU-Machine's."""

    component: str
    device_id: str
    partition: str = ""
    pci: str = ""


def parse(text: bytes) -> list[IpuDevice]:
    """The single IPUs without repeats; groups of IPUs are skipped. Raises Unreadable."""
    devices: dict[str, IpuDevice] = {}
    partition, listing = "", False
    for line in lines(text):
        if "device listing" in line:
            partition, listing = "", True
        if found := _PARTITION.match(line.strip()):
            partition = name(found[1])
        if not line.strip().startswith("-+-"):
            continue
        values = {key.strip().lower(): name(value) for key, value in _VALUE.findall(line)}
        device_id = values.get("id", "")
        if not device_id.isdigit() or (values.get("target") or values.get("type")) not in ("Fabric", "PCIe"):
            continue
        pci = values.get("pci domain", "")
        component = component_of(values.get("ipu-m host", ""), values.get("ipu#", ""), pci, device_id)
        devices.setdefault(component, IpuDevice(component, device_id, partition, component[4:] if pci else ""))
    if len(devices) > DEVICES_LIMIT:
        raise Unreadable(f"gc-info -l: {len(devices)} IPUs, expected at most {DEVICES_LIMIT}")
    if not devices and not listing:
        raise Unreadable("gc-info -l: no device listing found")
    return list(devices.values())

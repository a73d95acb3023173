"""The PCI devices of a node, from sysfs, independent of their drivers.

A GPU without a driver, or one that NVML has lost, is still a PCI function; one that fell off the bus is not.
Class and vendor numbers: the PCI ID repository (pci.ids), and `lspci -n` of the devices named.
"""

import os
import re
from enum import StrEnum
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer
from muster_checks.base.declaration import NodeView

NVIDIA, AMD, GRAPHCORE, INTEL, HABANA = 0x10DE, 0x1002, 0x1D95, 0x8086, 0x1DA3
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class DeviceKind(StrEnum):
    GPU = "gpu"
    IPU = "ipu"
    ACCELERATOR = "accelerator"
    NIC = "nic"
    NVME = "nvme"
    NVSWITCH = "nvswitch"
    BRIDGE = "bridge"
    OTHER = "other"


class PciDevice(msgspec.Struct, frozen=True):
    """One PCI function.

    address:  ``0000:3b:00.0``
    path:     its folder under /sys/devices, so that its parents are the bridges up to the root port
    """

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str
    path: Path

    @property
    def kind(self) -> DeviceKind:
        base, subclass = self.class_code >> 16, self.class_code >> 8
        if self.vendor == NVIDIA and subclass in (0x0300, 0x0302):
            return DeviceKind.GPU
        if self.vendor == NVIDIA and subclass == 0x0680:
            return DeviceKind.NVSWITCH
        if self.vendor == GRAPHCORE:
            return DeviceKind.IPU
        if base == 0x12 or (self.vendor == AMD and subclass in (0x0380, 0x0302)):
            return DeviceKind.ACCELERATOR
        if base == 0x02:
            return DeviceKind.NIC
        if subclass == 0x0108:
            return DeviceKind.NVME
        return DeviceKind.BRIDGE if base == 0x06 else DeviceKind.OTHER


def pci_devices(node: NodeView) -> list[PciDevice]:
    """Every PCI function, by address, without virtual functions (they repeat their card's link)."""
    folder = node.path("/sys/bus/pci/devices")
    found = []
    for address in names_in(folder):
        entry = folder / address
        vendor, device = read_integer(entry / "vendor"), read_integer(entry / "device")
        class_code = read_integer(entry / "class")
        if vendor is None or device is None or class_code is None or (entry / "physfn").exists():
            continue
        found.append(PciDevice(address, vendor, device, class_code, _driver(entry), _resolve(entry)))
    return found


def upstream(device: PciDevice) -> list[Path]:
    """The folders of the bridges above the device, the nearest first, up to its root port."""
    above = []
    for parent in device.path.parents:
        if not PCI_ADDRESS.fullmatch(parent.name):  # pci0000:00: a host bridge, or a controller with its own bus
            break
        above.append(parent)
    return above


def nvidia_gpus(node: NodeView) -> list[PciDevice]:
    return [device for device in pci_devices(node) if device.kind is DeviceKind.GPU]


def port_name(node: NodeView, device: PciDevice) -> str:
    """The device's component name in findings: ``gpu/<address>``, ``nic/mlx5_0``, ``disk/nvme0``, else
    ``pci/<address>``."""
    entry = node.path(f"/sys/bus/pci/devices/{device.address}")
    match device.kind:
        case DeviceKind.GPU | DeviceKind.ACCELERATOR:
            return f"gpu/{device.address}"
        case DeviceKind.NVSWITCH:
            return f"nvswitch/{device.address}"
        case DeviceKind.NIC:
            names = names_in(entry / "infiniband") or names_in(entry / "net") or _virtio_names(entry)
            return f"nic/{names[0] if names else device.address}"
        case DeviceKind.NVME:
            names = names_in(entry / "nvme")
            return f"disk/{names[0] if names else device.address}"
    return f"pci/{device.address}"


def _virtio_names(entry: Path) -> list[str]:
    """A virtio interface is one folder lower: virtio2/net/eth0."""
    return [name for child in names_in(entry) if child.startswith("virtio") for name in names_in(entry / child / "net")]


def normal_address(text: str) -> str:
    """``00000000:3B:00.0`` (nvidia-smi), ``3b:00.0`` (lspci) and ``0000:3b:00`` (kernel log) as ``0000:3b:00.0``."""
    address = text.strip().lower()
    if address.count(":") == 1:
        address = f"0000:{address}"
    domain, _, rest = address.partition(":")
    try:
        domain = f"{int(domain, 16):04x}"
    except ValueError:
        return address
    return f"{domain}:{rest if '.' in rest else rest + '.0'}"


def _driver(entry: Path) -> str:
    link = entry / "driver"
    return _resolve(link).name if link.exists() else ""


def _resolve(entry: Path) -> Path:
    # not Path.resolve(): it raises RuntimeError for links in a circle
    return Path(os.path.realpath(entry))

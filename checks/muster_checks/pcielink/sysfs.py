"""Reads PCIe links from sysfs. A link has two ends, the device below and the port above; both report its state.

Speeds are in GT/s per lane. Formats: drivers/pci/pci-sysfs.c and pci_speed_string() of the kernel: "16.0 GT/s PCIe",
formerly "8 GT/s", "Unknown", "Unknown speed". A device that is off the bus answers with all bits set: a width of 63.
"""

from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import number, read_integer, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.hardware.pci import DeviceKind, PciDevice, pci_devices, port_name, upstream
from muster_checks.pcielink.errors import AerErrors, read_errors

KINDS = (DeviceKind.GPU, DeviceKind.IPU, DeviceKind.ACCELERATOR, DeviceKind.NIC, DeviceKind.NVME)
WIDEST = 32
FASTEST_GT_PER_S = 128.0  # PCIe 7.0
# ports of QEMU, VMware and virtio report arbitrary values: their maximum says nothing about the slot
VIRTUAL_PORTS = (0x1B36, 0x15AD, 0x1AF4)


class LinkEnd(msgspec.Struct, frozen=True):
    """What one end of a link reports; None for values it does not report."""

    address: str
    vendor: int | None = None
    gt_per_s: float | None = None
    max_gt_per_s: float | None = None
    lanes: int | None = None
    max_lanes: int | None = None


class PcieLink(msgspec.Struct, frozen=True):
    """One link. ``upper`` is None if the port above is virtual or missing: the slot's capability is then unknown."""

    lower: LinkEnd
    upper: LinkEnd | None = None

    @property
    def gt_per_s(self) -> float | None:
        return self.lower.gt_per_s or (self.upper.gt_per_s if self.upper else None)

    @property
    def lanes(self) -> int | None:
        return self.lower.lanes or (self.upper.lanes if self.upper else None)

    @property
    def best_gt_per_s(self) -> float | None:
        """What both ends support; None if one of them does not report it."""
        return _least(self.lower.max_gt_per_s, self.upper.max_gt_per_s if self.upper else None)

    @property
    def best_lanes(self) -> int | None:
        best = _least(self.lower.max_lanes, self.upper.max_lanes if self.upper else None)
        return None if best is None else int(best)

    @property
    def name(self) -> str:
        return f"{self.upper.address if self.upper else '?'} and {self.lower.address}"


class PcieDevice(msgspec.Struct, frozen=True):
    """A device and the links from it up to its root port, its own first; no links if sysfs shows none.

    model:  vendor and device number, to find its siblings
    asleep: it is powered off (D3cold), so its link is down on purpose
    """

    address: str
    component: str
    kind: DeviceKind
    vendor: int
    model: str
    links: tuple[PcieLink, ...] = ()
    asleep: bool = False


class PciReading(msgspec.Struct, frozen=True):
    """One reading of a node.

    errors:  by component, for devices and the bridges above them
    virtual: a virtual machine, where the link data that a guest sees is partly or entirely made up
    """

    devices: tuple[PcieDevice, ...]
    errors: dict[str, AerErrors]
    virtual: bool = False


def read_node(node: NodeView) -> PciReading:
    # the flags of the first processor are within the first page; reading the whole file is slow with many processors
    virtual = " hypervisor" in (read_text(node.path("/proc/cpuinfo"), 4096) or "")
    devices, errors = [], {}
    for device in pci_devices(node):
        if device.kind not in KINDS:
            continue
        above = upstream(device)
        component = port_name(node, device)
        devices.append(
            PcieDevice(
                address=device.address,
                component=component,
                kind=device.kind,
                vendor=device.vendor,
                model=f"{device.vendor:04x}:{device.device:04x}",
                links=_links(device, above, virtual),
                asleep=read_text(device.path / "power_state", 64) == "D3cold",
            )
        )
        for name, folder in ((component, device.path), *((f"pci/{bridge.name}", bridge) for bridge in above)):
            if name not in errors and (found := read_errors(folder)) is not None:
                errors[name] = found
    return PciReading(tuple(devices), errors, virtual)


def _links(device: PciDevice, above: list[Path], virtual: bool) -> tuple[PcieLink, ...]:
    """The device's link, then each switch's. The connection inside a switch is not a link."""
    chain = [device.path, *above]
    links = []
    for place in range(0, len(chain), 2):
        lower = _end(chain[place])
        if lower is None:
            continue
        port = chain[place + 1] if place + 1 < len(chain) else None
        if port is not None and (virtual or read_integer(port / "vendor") in VIRTUAL_PORTS):
            port = None
        links.append(PcieLink(lower, _end(port) if port is not None else None))
    return tuple(links)


def _end(folder: Path) -> LinkEnd | None:
    """None without these files: the device is not PCI Express."""
    speed = read_text(folder / "current_link_speed", 64)
    if speed is None:
        return None
    return LinkEnd(
        address=folder.name,
        vendor=read_integer(folder / "vendor"),
        gt_per_s=_speed(speed),
        max_gt_per_s=_speed(read_text(folder / "max_link_speed", 64)),
        lanes=_width(folder / "current_link_width"),
        max_lanes=_width(folder / "max_link_width"),
    )


def _speed(text: str | None) -> float | None:
    value = number(text)
    return value if value is not None and 0 < value <= FASTEST_GT_PER_S else None


def _width(path: Path) -> int | None:
    value = read_integer(path)
    return value if value is not None and 0 < value <= WIDEST else None


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)

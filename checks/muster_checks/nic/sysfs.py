"""Reads Ethernet interfaces from sysfs. Formats: Documentation/ABI/testing/sysfs-class-net of the kernel.

Reading carrier, speed or duplex of an interface that is down fails; a virtual interface reports a speed of -1.
psutil is not used: it does not obey ``--root``, and it has only 8 of the counters: no flaps, no CRC errors.
"""

import os
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.hardware.pci import PciDevice, pci_devices, port_name

ETHERNET = 1  # ARPHRD_ETHER
IFF_UP = 0x1
STATISTICS = (
    *("rx_packets", "rx_errors", "rx_crc_errors", "rx_missed_errors"),
    *("tx_packets", "tx_errors", "tx_dropped"),
)
FASTEST_MBIT_PER_S = 10_000_000
# devlink's port names for functions of a card: pf0vf3, pf0sf88, c1pf0
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:(?:vf|sf)\d+)?")


class NicInterface(msgspec.Struct, frozen=True):
    """One interface that is administratively up.

    model:     PCI vendor and device number, to find its siblings
    link:      None if it cannot be read
    link_downs: how often the link was lost since the driver was loaded
    bond:      the bond it belongs to; slave_up: its state as seen by the bond
    """

    name: str
    component: str
    model: str
    link: bool | None = None
    speed_mbit_per_s: int | None = None
    duplex: str = ""
    mtu: int | None = None
    link_ups: int | None = None
    link_downs: int | None = None
    bond: str = ""
    slave_up: bool | None = None
    counters: dict[str, int] = {}

    @property
    def used(self) -> bool:
        """It has had a link since its driver was loaded, or it belongs to a bond."""
        return bool(self.link_ups or self.counters.get("rx_packets") or self.bond)


def matches_globs(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, glob.strip()) for glob in globs.split(","))


def read_interfaces(node: NodeView, globs: str) -> list[NicInterface]:
    """Every Ethernet interface of a PCI function that is up and whose name matches."""
    folder = node.path("/sys/class/net")
    devices = {device.address: device for device in pci_devices(node)}
    owners = {name: device for name in names_in(folder) if (device := _owner(folder / name, devices)) is not None}
    of_function = Counter(device.address for device in owners.values())
    found = []
    for name, device in owners.items():
        flags = read_integer(folder / name / "flags")
        if not matches_globs(name, globs) or read_integer(folder / name / "type") != ETHERNET:
            continue
        if flags is not None and not flags & IFF_UP:
            continue
        # cards with several ports on one function need one name per port
        component = port_name(node, device) if of_function[device.address] == 1 else f"nic/{name}"
        found.append(_interface(folder / name, name, component, f"{device.vendor:04x}:{device.device:04x}"))
    return found


def _interface(folder: Path, name: str, component: str, model: str) -> NicInterface:
    speed, carrier = read_integer(folder / "speed"), read_integer(folder / "carrier")
    changes, downs = read_integer(folder / "carrier_changes"), read_integer(folder / "carrier_down_count")
    slave = read_text(folder / "bonding_slave/mii_status", 64)
    master = Path(os.path.realpath(folder / "master"))
    return NicInterface(
        name=name,
        component=component,
        model=model,
        link=None if carrier is None else carrier == 1,
        speed_mbit_per_s=speed if speed is not None and 0 < speed <= FASTEST_MBIT_PER_S else None,
        duplex=read_text(folder / "duplex", 64) or "",
        mtu=read_integer(folder / "mtu"),
        link_ups=read_integer(folder / "carrier_up_count"),
        # before Linux 4.16 there is only one counter for both directions
        link_downs=downs if downs is not None or changes is None else changes // 2,
        bond=master.name if (master / "bonding").is_dir() else "",
        slave_up=None if slave is None else slave == "up",
        counters={
            counter: value
            for counter in STATISTICS
            if (value := read_integer(folder / "statistics" / counter)) is not None and value >= 0
        },
    )


def _owner(folder: Path, devices: dict[str, PciDevice]) -> PciDevice | None:
    """The PCI function of an interface; None for virtual interfaces, virtual functions and representors."""
    place = os.path.realpath(folder)
    if "mlx5_core.sf." in place or _REPRESENTOR.fullmatch(read_text(folder / "phys_port_name", 64) or ""):
        return None
    # the nearest ancestor: a virtio interface is below its PCI function
    return next((devices[part] for part in reversed(place.split("/")) if part in devices), None)

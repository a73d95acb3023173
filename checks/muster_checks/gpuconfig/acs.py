"""PCIe Access Control Services (ACS) of the switches above GPUs.

A switch port whose ACS redirects peer-to-peer traffic sends it up to the CPU's root complex instead of directly to the
neighbour. This is slow, and on some machines it fails (NVIDIA NCCL User Guide, Troubleshooting, "PCI Access Control
Services"). In a virtual machine the host controls ACS, which must be on. Root ports are not judged: traffic between
them always passes through the root complex, and Linux turns their ACS on with every IOMMU.

Register layout: include/uapi/linux/pci_regs.h (PCI_EXT_CAP_*, PCI_ACS_*). Request redirect, completion redirect and
egress control block peer-to-peer traffic: Linux's own pci=disable_acs_redir= clears these three.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import open_plain, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.hardware.pci import DeviceKind, pci_devices, upstream

CONFIG_BYTES = 4096
EXTENDED_AT = 0x100
ACS = 0x000D
REDIRECTS = 0x04 | 0x08 | 0x20  # P2P request redirect, P2P completion redirect, P2P egress control
DIRECT_TRANSLATED = 0x40  # set on purpose so that devices with address translation (ATS) talk directly
PEERS = (DeviceKind.GPU, DeviceKind.ACCELERATOR, DeviceKind.NIC, DeviceKind.NVME)


class AcsPort(msgspec.Struct, frozen=True):
    """A switch port above a GPU, with neighbours behind the same switch. ``control``: its ACS control register."""

    address: str
    gpu: str
    control: int


def acs_control(config: bytes) -> int | None:
    """The ACS control register of a PCI function; 0 if it has no ACS.

    config: its configuration space; without privileges Linux returns 64 bytes, and 256 if there are no more
    None if it is unknown: too few bytes, or a function that does not respond (all ones).
    """
    if len(config) < EXTENDED_AT + 4:
        return None
    place = EXTENDED_AT
    for _ in range((CONFIG_BYTES - EXTENDED_AT) // 8):  # more capabilities do not fit: a longer list is a loop
        header = int.from_bytes(config[place : place + 4], "little")
        if header == 0xFFFFFFFF:
            return None
        if header & 0xFFFF == ACS:
            register = config[place + 6 : place + 8]
            return int.from_bytes(register, "little") if len(register) == 2 else None
        place = header >> 20 & 0xFFC
        if place < EXTENDED_AT:
            return 0
        if place + 4 > len(config):
            return None
    return None


def read_ports(node: NodeView) -> list[AcsPort]:
    """Ports that could be read. None on a virtual machine, or where cpuinfo does not show whether it is one (Arm)."""
    # the first page contains the flags of the first processor; with many processors the whole file takes long
    flags = (read_text(node.path("/proc/cpuinfo"), 4096) or "").partition("\nflags")[2]
    devices = pci_devices(node)
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if len(gpus) < 2 or not flags or " hypervisor" in flags:
        return []
    peers = [device.path for device in devices if device.kind in PEERS]
    ports: dict[str, AcsPort] = {}
    for gpu in gpus:
        above = upstream(gpu)
        for port, parent in pairwise(above):
            if port.name in ports or not any(parent in peer.parents and port not in peer.parents for peer in peers):
                continue
            control = acs_control(_config(node.path(f"/sys/bus/pci/devices/{port.name}/config")))
            if control is not None:
                ports[port.name] = AcsPort(port.name, gpu.address, control)
    return list(ports.values())


def judge_ports(ports: Iterable[AcsPort]) -> list[Finding]:
    findings = []
    for port in ports:
        redirects = port.control & REDIRECTS and not port.control & DIRECT_TRANSLATED
        message = (
            f"ACS sends traffic between GPU {port.gpu} and its neighbours through the CPU: switch ACS off in the BIOS, "
            f"or until the next boot with setpci -s {port.address} ECAP_ACS+6.w=0"
            if redirects
            else f"GPU {port.gpu} and its neighbours communicate directly"
        )
        findings.append(
            Finding(
                component=f"pci/{port.address}",
                verdict=Verdict.WARN if redirects else Verdict.PASS,
                reason="AcsRedirects" if redirects else "Ok",
                message=message,
                measurements=(Measurement("acs_control", float(port.control)),),
            )
        )
    return findings


def _config(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read(CONFIG_BYTES)
    except (OSError, ValueError):
        return b""

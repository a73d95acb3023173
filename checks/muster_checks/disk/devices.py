"""Disks and arrays as sysfs shows them: those the kernel uses, and those it gave up.

NVMe states: drivers/nvme/host/core.c; SCSI states: drivers/scsi/scsi_sysfs.c; md: Documentation/admin-guide/md.rst.
SCSI's ``ioerr_cnt`` is ignored: it counts every command that did not end with plain success, including smartctl's own
queries, so it rises on healthy disks.
"""

import re

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.hardware.pci import DeviceKind, pci_devices, port_name

_CONTROLLER = re.compile(r"nvme\d+")
_SCSI = re.compile(r"sd[a-z]{1,4}")
_ARRAY = re.compile(r"md(?:\d+|_[\w.-]{1,32})")


class NvmeController(msgspec.Struct, frozen=True):
    """One NVMe controller. state: ``live``, ``resetting``, ``dead`` …; local: on PCIe, not over a network."""

    name: str
    state: str
    local: bool


class ScsiDisk(msgspec.Struct, frozen=True):
    """One built-in SATA, SAS or virtual disk. state: ``running``, ``offline`` …"""

    name: str
    state: str


class MdArray(msgspec.Struct, frozen=True):
    """One md array. missing: number of absent members; None for levels without redundancy. action: ``recover`` …"""

    name: str
    level: str
    state: str
    missing: int | None
    action: str


class DiskDevices(msgspec.Struct, frozen=True):
    """unbound: NVMe disks on PCI without a driver, as components (``disk/<address>``)."""

    controllers: tuple[NvmeController, ...] = ()
    scsi: tuple[ScsiDisk, ...] = ()
    arrays: tuple[MdArray, ...] = ()
    unbound: tuple[str, ...] = ()


def read_devices(node: NodeView) -> DiskDevices:
    return DiskDevices(
        controllers=tuple(_controllers(node)),
        scsi=tuple(_scsi(node)),
        arrays=tuple(_arrays(node)),
        unbound=tuple(port_name(node, d) for d in pci_devices(node) if d.kind is DeviceKind.NVME and not d.driver),
    )


def _controllers(node: NodeView) -> list[NvmeController]:
    folder = node.path("/sys/class/nvme")
    return [
        NvmeController(
            name=name,
            state=read_text(folder / name / "state", 64) or "",
            # kernels without this file support only PCIe
            local=(read_text(folder / name / "transport", 64) or "pcie") == "pcie",
        )
        for name in filter(_CONTROLLER.fullmatch, names_in(folder))
    ]


def _scsi(node: NodeView) -> list[ScsiDisk]:
    folder = node.path("/sys/block")
    return [
        ScsiDisk(name, read_text(folder / name / "device/state", 64) or "")
        for name in filter(_SCSI.fullmatch, names_in(folder))
        if read_integer(folder / name / "removable") != 1
    ]


def _arrays(node: NodeView) -> list[MdArray]:
    folder = node.path("/sys/block")
    return [
        MdArray(
            name=name,
            level=read_text(folder / name / "md/level", 64) or "",
            state=read_text(folder / name / "md/array_state", 64) or "",
            missing=read_integer(folder / name / "md/degraded"),
            action=read_text(folder / name / "md/sync_action", 64) or "",
        )
        for name in filter(_ARRAY.fullmatch, names_in(folder))
    ]

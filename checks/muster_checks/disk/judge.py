"""Judges the readings of disks, arrays and file systems.

A disk fails if the kernel gave it up, or if it reports that it is unreliable, read-only, or has less spare than its own
limit: the next bad block may lose data. A disk that works but is worn warns. Jobs fill file systems, so a full one
fails only where the node itself writes, and only if nothing can be written at all.
"""

import errno
from collections.abc import Mapping

import msgspec

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.disk import DiskParameters
from muster_checks.disk.devices import DiskDevices, MdArray, NvmeController, ScsiDisk
from muster_checks.disk.mounts import Filesystem
from muster_checks.disk.smart import SmartHealth
from muster_checks.disk.space import DiskSpace

DAY_S = 86_400.0
GIB = 1 << 30


class WarningBit(msgspec.Struct, frozen=True):
    mask: int
    verdict: Verdict
    reason: str
    asks: FaultClass
    what: str


# NVMe base specification 2.0, SMART / Health Information log, byte 0 (Critical Warning)
CRITICAL_WARNINGS = (
    WarningBit(0x04, Verdict.FAIL, "NvmeUnreliable", FaultClass.REPLACE, "reports that it is unreliable: replace it"),
    WarningBit(0x08, Verdict.FAIL, "NvmeReadOnly", FaultClass.REPLACE, "switched itself to read-only mode: replace it"),
    WarningBit(0x01, Verdict.FAIL, "NvmeSpareLow", FaultClass.REPLACE, "has used up its spare blocks: replace it"),
    WarningBit(
        0x10, Verdict.WARN, "NvmeBackupFailed", FaultClass.REPLACE, "loses its cache on power failure: replace it"
    ),
    WarningBit(
        0x02, Verdict.WARN, "NvmeTemperature", FaultClass.CONTACT, "is outside its temperature limits: check fans"
    ),
    WarningBit(
        0x20, Verdict.WARN, "NvmePmrUnreliable", FaultClass.REPLACE, "has an unreliable memory region: replace it"
    ),
)
# permanent states; all others are on the way to or from "live"
_DEAD = ("dead",)
_OFFLINE = ("offline", "transport-offline")


def counter_name(health: SmartHealth) -> str:
    return f"{health.device}.media_errors"


def judge_devices(devices: DiskDevices, limits: DiskParameters) -> list[Finding]:
    local = sum(controller.local for controller in devices.controllers)
    findings = [
        *map(_controller, devices.controllers),
        *map(_scsi, devices.scsi),
        *map(_array, devices.arrays),
        *(
            _finding(
                component,
                Verdict.WARN,
                "NvmeWithoutDriver",
                "an NVMe disk is on the PCI bus, but no driver uses it: check the kernel log, then reboot",
                FaultClass.REBOOT,
            )
            for component in devices.unbound
        ),
    ]
    if limits.min_nvme is not None and local < limits.min_nvme:
        findings.append(
            _finding(
                "host",
                Verdict.FAIL,
                "NvmeMissing",
                f"{local} local NVMe disks, expected {limits.min_nvme}: look for an empty slot or a dead disk",
                FaultClass.CONTACT,
                Measurement("nvme_disks", local, "", limits.min_nvme),
            )
        )
    return findings


def judge_health(health: SmartHealth, series: Mapping[str, CounterSeries], limits: DiskParameters) -> list[Finding]:
    """What one disk reports; nothing for disks without health data (virtual disks, volumes of a RAID controller)."""
    if not health.says_something:
        return []
    name = health.device
    warning = health.critical_warning or 0
    bad = [
        _smart(health, bit.verdict, bit.reason, f"{name} {bit.what}", bit.asks)
        for bit in CRITICAL_WARNINGS
        if warning & bit.mask
    ]
    known = sum(bit.mask for bit in CRITICAL_WARNINGS)
    if warning & ~known:
        bad.append(
            _smart(health, Verdict.WARN, "NvmeCriticalWarning", f"{name} sets an unknown warning bit: {warning:#04x}")
        )
    if health.passed is False and health.critical_warning is None:
        text = f"{name} predicts its own failure (SMART overall health): replace it"
        bad.append(_smart(health, Verdict.FAIL, "SmartFailed", text, FaultClass.REPLACE))
    spare, threshold = health.spare_percent, health.spare_threshold_percent
    if spare is not None and threshold is not None and spare < threshold and not warning & 0x01:
        text = f"{name} has {spare:g} % of its spare blocks left (the disk's limit: {threshold:g} %): replace it"
        bad.append(_smart(health, Verdict.FAIL, "NvmeSpareLow", text, FaultClass.REPLACE))
    if health.wear_percent is not None and health.wear_percent >= limits.max_wear_percent:
        text = f"{name} has used {health.wear_percent:g} % of its rated life (limit {limits.max_wear_percent:g} %)"
        bad.append(_smart(health, Verdict.WARN, "NvmeWornOut", text, FaultClass.REPLACE))
    counter = series.get(counter_name(health))
    risen = counter.rise(DAY_S).amount if counter else 0.0
    if risen > 0:
        text = f"{name} lost data {risen:g} times within a day (media errors): replace it"
        bad.append(_smart(health, Verdict.WARN, "MediaErrors", text, FaultClass.REPLACE))
    return bad or [_smart(health, Verdict.PASS, "Ok", "")]


def judge_filesystem(
    filesystem: Filesystem, space: DiskSpace | None, error: OSError | None, needed: bool, limits: DiskParameters
) -> list[Finding]:
    """space: None if it is not visible, or if ``error`` holds the reason. needed: the node itself writes there."""
    component, where = f"disk/{filesystem.name}", f"{filesystem.point} ({filesystem.kind} on {filesystem.name})"
    bad = []
    if filesystem.stopped and not needed:
        text = f"{where} went read-only after an error: its pods cannot write to it, but the node does not need it"
        bad.append(_finding(component, Verdict.WARN, "VolumeReadOnly", text, FaultClass.CONTACT))
    elif filesystem.stopped:
        text = f"{where} went read-only after an error: nothing can be written; check the kernel log, then reboot"
        bad.append(_finding(component, Verdict.FAIL, "FilesystemReadOnly", text, FaultClass.REBOOT))
    if error is not None:
        bad.append(_judge_unanswered(component, where, error))
    if space is None:
        return bad or [_finding(component, Verdict.PASS, "Ok", f"{where}: its space is not visible to this process")]
    inodes = space.free_inodes_percent
    free = Measurement("free", space.free_percent, "%", limits.min_free_percent if needed else None)
    measured = [free, Measurement("free_space", space.free_bytes / GIB, "GiB")]
    if inodes is not None:
        measured.append(Measurement("free_inodes", inodes, "%", limits.min_free_inodes_percent if needed else None))
    if space.free_percent <= 0 or (inodes is not None and inodes <= 0):
        what = "inodes" if space.free_percent > 0 else "space"
        text = f"{where} has no {what} left: nothing can be written"
        # no class: jobs fill disks, and the kubelet's own DiskPressure keeps new pods away
        verdict = Verdict.FAIL if needed else Verdict.WARN
        bad.append(_finding(component, verdict, "DiskFull", text, FaultClass.NONE, *measured))
    elif needed and space.free_percent < limits.min_free_percent:
        text = (
            f"{where}: {space.free_percent:.1f} % free (limit {limits.min_free_percent:g} %): the kubelet evicts pods"
        )
        bad.append(_finding(component, Verdict.WARN, "SpaceLow", text, FaultClass.NONE, *measured))
    elif needed and inodes is not None and inodes < limits.min_free_inodes_percent:
        text = f"{where}: {inodes:.1f} % of its inodes are free (limit {limits.min_free_inodes_percent:g} %)"
        bad.append(_finding(component, Verdict.WARN, "InodesLow", text, FaultClass.NONE, *measured))
    return bad or [_finding(component, Verdict.PASS, "Ok", "", FaultClass.NONE, *measured)]


def _controller(controller: NvmeController) -> Finding:
    component = f"disk/{controller.name}"
    if controller.state == "live":
        return _finding(component, Verdict.PASS, "Ok", "")
    if controller.state in _DEAD:
        text = "the kernel gave up this NVMe disk after a failed reset: reboot; if it stays dead, replace it"
        return _finding(component, Verdict.FAIL, "NvmeDead", text, FaultClass.REBOOT)
    if not controller.state:
        return _finding(component, Verdict.UNKNOWN, "NotReadable", f"{controller.name}: cannot read its state")
    text = f"{controller.name} is {controller.state}, not live: the kernel is resetting or reconnecting it"
    return _finding(component, Verdict.WARN, "NvmeNotLive", text)


def _scsi(disk: ScsiDisk) -> Finding:
    component = f"disk/{disk.name}"
    if disk.state == "running":
        return _finding(component, Verdict.PASS, "Ok", "")
    if disk.state in _OFFLINE:
        text = f"the kernel took {disk.name} offline: all I/O fails; reboot; if it stays offline, replace it"
        return _finding(component, Verdict.FAIL, "DiskOffline", text, FaultClass.REBOOT)
    if not disk.state:
        return _finding(component, Verdict.UNKNOWN, "NotReadable", f"{disk.name}: cannot read its state")
    text = f"{disk.name} is {disk.state}, not running: its I/O waits"
    return _finding(component, Verdict.WARN, "DiskNotRunning", text)


def _array(array: MdArray) -> Finding:
    component = f"disk/{array.name}"
    if array.state == "broken":
        text = f"{array.name} ({array.level}) lost a member and has no redundancy: its data are lost"
        return _finding(component, Verdict.FAIL, "RaidFailed", text, FaultClass.REPLACE)
    if array.missing:
        action = f", {array.action} is running" if array.action not in ("", "idle") else ""
        text = f"{array.name} ({array.level}) is degraded, {array.missing} disks missing{action}: replace them"
        measured = Measurement("missing", array.missing, "disks", 0)
        return _finding(component, Verdict.WARN, "RaidDegraded", text, FaultClass.REPLACE, measured)
    if array.state == "inactive":
        text = f"{array.name} could not be started: too many of its disks are missing"
        return _finding(component, Verdict.WARN, "RaidInactive", text, FaultClass.CONTACT)
    if not array.state:
        return _finding(component, Verdict.UNKNOWN, "NotReadable", f"{array.name}: cannot read its state")
    return _finding(component, Verdict.PASS, "Ok", "")


def _judge_unanswered(component: str, where: str, error: OSError) -> Finding:
    if error.errno == errno.EIO:
        # on the root folder of a mounted file system, EIO cannot come from permissions or a wrong name
        text = f"{where} cannot be accessed (input/output error): check the kernel log, then reboot"
        return _finding(component, Verdict.FAIL, "FilesystemError", text, FaultClass.REBOOT)
    why = "no answer; its disk may hang" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return _finding(component, Verdict.UNKNOWN, "NotReadable", f"{where}: {why}")


def _smart(
    health: SmartHealth, verdict: Verdict, reason: str, message: str, asks: FaultClass = FaultClass.NONE
) -> Finding:
    rows = [
        ("spare", health.spare_percent, "%", health.spare_threshold_percent),
        ("wear", health.wear_percent, "%", None),
        ("media_errors", health.media_errors, "errors", None),
        ("temperature", health.temperature_c, "°C", None),
    ]
    measured = (Measurement(name, value, unit, limit) for name, value, unit, limit in rows if value is not None)
    return _finding(f"disk/{health.device}", verdict, reason, message, asks, *measured)


def _finding(
    component: str,
    verdict: Verdict,
    reason: str,
    message: str,
    asks: FaultClass = FaultClass.NONE,
    *measured: Measurement,
) -> Finding:
    return Finding(
        component=component, verdict=verdict, reason=reason, message=message, fault_class=asks, measurements=measured
    )

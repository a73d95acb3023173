"""Reads disks, arrays and file systems concurrently, and passes the readings to the judges."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.disk import DiskParameters
from muster_checks.disk.devices import DiskDevices, read_devices
from muster_checks.disk.folders import node_links, split_paths
from muster_checks.disk.judge import counter_name, judge_devices, judge_filesystem, judge_health
from muster_checks.disk.mounts import Filesystem, find_serving_mount, group_filesystems, read_mounts
from muster_checks.disk.smart import NVME, SMARTCTL, SmartHealth, SmartUnavailable, parse_nvme, parse_smartctl
from muster_checks.disk.space import DiskSpace, SpaceReader

_SPACES = SpaceReader()
_ADVICE = {
    "NoDeviceFile": ": a container has the device files of its start; if the disk was added later, restart the agent",
    "DeviceGone": ": the device file exists, but no device has its number: if the disk is gone, check it and its slot; "
    "if it came back with another number, restart the agent",
}


async def probe(node: NodeView, parameters: DiskParameters, spaces: SpaceReader = _SPACES) -> list[Finding]:
    devices, mounts = await in_thread(node, read_devices, node), read_mounts(node)
    found = group_filesystems(node, mounts)
    if not (devices.controllers or devices.scsi or devices.arrays or devices.unbound or found or parameters.min_nvme):
        raise NotHere("this node has no NVMe or SCSI disk, no array, and no mounted local file system")
    links = node_links(node.root)
    needed = find_serving_mount(mounts, [links.get(path, path) for path in split_paths(parameters.paths)])
    # without any of the paths these are not the node's own mounts: in doubt a stopped file system is one of the node's
    unknown = not any(filesystem.device in needed for filesystem in found)
    answers = await asyncio.gather(
        _judge_own_view(node, devices, parameters),
        *(
            _filesystem(node, each, each.device in needed or (unknown and each.stopped), parameters, spaces)
            for each in found
        ),
    )
    return _drop_repeats([*judge_devices(devices, parameters), *(found for each in answers for found in each)])


def judge_recorded(text: bytes, parameters: DiskParameters) -> Sequence[Finding] | None:
    """The output of `smartctl -j`, or of `nvme smart-log -o json`."""
    for parse in (parse_smartctl, parse_nvme):
        try:
            health = parse(text)
        except Unreadable:
            continue
        except SmartUnavailable as refusal:
            raise CannotTell(f"smartctl: {refusal}", "NotReadable") from None
        return judge_health(health, {}, parameters) or None
    return None


async def _judge_own_view(node: NodeView, devices: DiskDevices, parameters: DiskParameters) -> list[Finding]:
    if not parameters.smart:
        return []
    names = [controller.name for controller in devices.controllers if controller.local and controller.state != "dead"]
    names += [disk.name for disk in devices.scsi if disk.state == "running"]
    answers = await asyncio.gather(*(_health(node, name, parameters.command_timeout_s) for name in names))
    healths = [answer for answer in answers if isinstance(answer, SmartHealth)]
    node.history.note(
        "disk", {counter_name(health): health.media_errors for health in healths if health.media_errors is not None}
    )
    series: Mapping[str, CounterSeries] = node.history.of("disk")
    judged = [finding for health in healths for finding in judge_health(health, series, parameters)]
    return [*judged, *(answer for answer in answers if isinstance(answer, Finding))]


async def _health(node: NodeView, name: str, timeout_s: float) -> SmartHealth | Finding | None:
    """None for a SCSI disk without SMART access: a virtual disk, or a volume of a RAID controller."""
    output = await node.commands.run([*SMARTCTL, f"/dev/{name}"], timeout_s=timeout_s)
    found = _read(name, output, parse_smartctl)
    if not isinstance(found, Finding) or not name.startswith("nvme") or output.timed_out:
        return found
    second = await node.commands.run([*NVME, f"/dev/{name}"], timeout_s=timeout_s)
    other = found if second.missing else _read(name, second, parse_nvme)
    return other if output.missing or isinstance(other, SmartHealth) else found


def _read(name: str, output: Output, parse: Callable[[bytes], SmartHealth]) -> SmartHealth | Finding | None:
    nvme = name.startswith("nvme")
    if output.missing:
        why = "smartctl: not found on this node; install smartmontools"
        return _unknown(name, "ToolMissing", why) if nvme else None
    try:
        # smartctl's exit code is a bit mask, and most bits describe the disk's state
        health = parse(output.stdout)
    except SmartUnavailable as refusal:
        advice = _ADVICE.get(refusal.reason, "")
        return _unknown(name, refusal.reason, f"smartctl: {refusal}{advice}") if nvme or refusal.expected else None
    except Unreadable as error:
        return _unknown(name, "NotReadable", output.trouble or f"{output.argv[0]}: {error}")
    if nvme and health.critical_warning is None:
        return _unknown(name, "NotReadable", output.trouble or f"{output.argv[0]}: no health log in its output")
    return msgspec.structs.replace(health, device=name)


async def _filesystem(
    node: NodeView, filesystem: Filesystem, needed: bool, parameters: DiskParameters, spaces: SpaceReader
) -> list[Finding]:
    space: DiskSpace | None = None
    error: OSError | None = None
    # the distribution fills a system partition at boot, and it is small: only its state is judged
    if filesystem.kind != "vfat" and not filesystem.point.startswith("/boot"):
        try:
            space = await spaces.ask(node, filesystem, parameters.mount_timeout_s)
        except OSError as caught:  # includes TimeoutError
            error = caught
    return judge_filesystem(filesystem, space, error, needed, parameters)


def _drop_repeats(findings: list[Finding]) -> list[Finding]:
    """Drop the kernel's PASS for a disk whose own health data already gives a finding: one line, not two."""
    spoken = {finding.component for finding in findings if finding.measurements or finding.verdict is not Verdict.PASS}
    return [
        finding
        for finding in findings
        if finding.verdict is not Verdict.PASS or finding.measurements or finding.component not in spoken
    ]


def _unknown(name: str, reason: str, message: str) -> Finding:
    return Finding(component=f"disk/{name}", verdict=Verdict.UNKNOWN, reason=reason, message=message)

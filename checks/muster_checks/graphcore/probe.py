"""Runs the tools that need no exclusive access: the attributes of each IPU, and the library's health check."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.graphcore import SDK, gcipuinfo_child
from muster_checks.graphcore.settings import IpuFabric
from muster_checks.graphcore.tools import attributes, health, monitor
from muster_checks.graphcore.tools.attributes import IpuAttributes
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.graphcore.tools.health import UnhealthyIpu

AT_ONCE = 4  # each gc-info scans all devices before it answers for one


class IpuReading(msgspec.Struct, frozen=True):
    """The attributes of one IPU, or why there are none."""

    device: IpuDevice
    attributes: IpuAttributes | None
    trouble: str = ""


class IpuHealth(msgspec.Struct, frozen=True):
    """The health of the IPUs beyond their attributes.

    unhealthy:  from gcipuinfo
    monitored:  the device ids that gc-monitor shows, if the library is not installed; otherwise None
    trouble:    why neither source answered; empty if one did
    """

    unhealthy: tuple[UnhealthyIpu, ...] = ()
    monitored: frozenset[str] | None = None
    trouble: str = ""


async def read_attributes(
    node: NodeView, fabric: IpuFabric, devices: Sequence[IpuDevice], timeout_s: float
) -> list[IpuReading]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(device: IpuDevice) -> IpuReading:
        argv = ["gc-info", "-d", device.device_id, "--device-info"]
        async with turn:
            output = await node.commands.run(argv, timeout_s=timeout_s, environment=fabric.variables)
        if not output.ok:
            return IpuReading(device, None, output.trouble)
        try:
            return IpuReading(device, attributes.parse(output.stdout)[0])
        except Unreadable as error:
            return IpuReading(device, None, f"gc-info: {error}")

    return list(await asyncio.gather(*(one(device) for device in devices)))


async def read_health(node: NodeView, fabric: IpuFabric, all_partitions: bool, timeout_s: float) -> IpuHealth:
    """From gcipuinfo, or from gc-monitor's table if the library is not installed."""
    child = str(Path(gcipuinfo_child.__file__))
    argv = ["python3", child, "all" if all_partitions else "active"]
    output = await node.commands.run(argv, timeout_s=timeout_s, environment=fabric.variables)
    if output.missing or output.exit_code == gcipuinfo_child.NO_LIBRARY:
        return await _read_monitor(node, fabric, all_partitions, timeout_s)
    if not output.ok:
        return IpuHealth(trouble=f"gcipuinfo: {output.trouble}")
    try:
        return IpuHealth(unhealthy=tuple(health.parse(output.stdout)))
    except Unreadable as error:
        return IpuHealth(trouble=str(error))


async def _read_monitor(node: NodeView, fabric: IpuFabric, all_partitions: bool, timeout_s: float) -> IpuHealth:
    argv = ["gc-monitor", *(["--all-partitions"] if all_partitions else [])]
    output = await node.commands.run(argv, timeout_s=timeout_s, environment=fabric.variables)
    if output.missing:
        return IpuHealth(trouble=f"neither gcipuinfo (Python) nor gc-monitor is installed; install {SDK}")
    if not output.ok:
        return IpuHealth(trouble=f"gcipuinfo is not installed; {output.trouble}")
    try:
        return IpuHealth(monitored=frozenset(row.device_id for row in monitor.parse(output.stdout)))
    except Unreadable as error:
        return IpuHealth(trouble=str(error))

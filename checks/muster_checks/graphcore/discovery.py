"""Finds the IPUs of this node: on its PCI bus, or over the network in a V-IPU partition."""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable, names_in
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.graphcore import SDK
from muster_checks.graphcore.settings import IpuFabric
from muster_checks.graphcore.tools.device_list import IpuDevice, parse
from muster_checks.hardware.pci import DeviceKind, pci_devices

# /dev/ipu-psys0 is excluded: it is Intel's camera
_NODE = re.compile(r"ipu\d{1,4}")


class DiscoveredIpus(msgspec.Struct, frozen=True):
    """``unlisted``: components on the PCI bus that gc-info does not list."""

    devices: tuple[IpuDevice, ...]
    unlisted: tuple[str, ...]


async def discover_ipus(node: NodeView, fabric: IpuFabric, all_partitions: bool, timeout_s: float) -> DiscoveredIpus:
    """The node's IPUs. Raises NotHere, ToolMissing or CannotTell."""
    on_bus = [device.address for device in await in_thread(node, pci_devices, node) if device.kind is DeviceKind.IPU]
    signs = bool(on_bus or fabric.configured or any(_NODE.fullmatch(name) for name in names_in(node.path("/dev"))))
    argv = ["gc-info", "-l", *(["--all-partitions"] if all_partitions else [])]
    output = await node.commands.run(argv, timeout_s=timeout_s, environment=fabric.variables)
    if output.missing:
        if signs:
            raise ToolMissing("gc-info", SDK)
        raise NotHere(
            "no IPU: no PCI device of Graphcore (1d95), no /dev/ipu0, no V-IPU controller configured, no gc-info"
        )
    try:
        if not output.ok:
            raise CannotTell(output.trouble)  # noqa: TRY301 - one place decides whether it matters
        devices = parse(output.stdout)
    except (CannotTell, Unreadable) as error:
        if signs:
            raise CannotTell(f"cannot list IPUs: {error}") from None
        raise NotHere(
            f"no IPU: no PCI device of Graphcore (1d95), no /dev/ipu0, no V-IPU controller; {error}"
        ) from None
    listed = {device.pci for device in devices}
    unlisted = tuple(f"ipu/{address}" for address in on_bus if address not in listed)
    if not devices and not unlisted:
        if fabric.partition:
            raise CannotTell(
                f"gc-info lists no IPU in partition {fabric.partition}: is the partition ACTIVE?", "NoIpus"
            )
        raise NotHere("gc-info lists no IPU: this host has no partition")
    return DiscoveredIpus(tuple(devices), unlisted)

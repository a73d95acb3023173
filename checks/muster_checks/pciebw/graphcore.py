"""gc-hosttraffictest: bandwidth between the host and one IPU. Uses the IPU exclusively; for the check ``pciebw``.

Source: docs.graphcore.ai, command-line-tools 1.2.3 and latest, gc-hosttraffictest. Speeds are in 1e9 bits a second. On
an IPU-Machine the host side of the buffer counts, which is the network path. PCIe cards have no such buffer, and only
the tile side is measured. The names of the PCIe cards' transfers are not public: a name with "to" and without "from" is
taken as the direction to the IPU, and vice versa.
"""

import os
from collections.abc import Mapping

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.graphcore import UNNAMED
from muster_checks.graphcore.discovery import discover_ipus
from muster_checks.graphcore.settings import GraphcoreParameters, IpuFabric, read_fabric
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.graphcore.tools.document import JsonEntries, read_document
from muster_checks.pciebw.bandwidth import Bandwidth

LIST_TIMEOUT_S = 30.0


def parse(text: bytes, component: str = UNNAMED) -> Bandwidth:
    """The best of all repeats, since other load can only slow a transfer down. Raises Unreadable."""
    to_device: list[float] = []
    from_device: list[float] = []
    found = False
    for entry in read_document(text):
        for key, value in entry:
            if not isinstance(value, JsonEntries) or value.get("duration_seconds") is None:
                continue
            found = True
            way = key.split("_")
            speed = number(value.get("host_transfer_speed_gbps", "tile_transfer_speed_gbps"))
            # a transfer in both directions tests contention in the buffer, not the path to the host
            if speed is not None and speed > 0 and ("to" in way) != ("from" in way):
                (to_device if "to" in way else from_device).append(speed / 8)
    if not found:
        raise Unreadable("gc-hosttraffictest: no transfers found")
    if not to_device and not from_device:
        return Bandwidth(component, None, None, "gc-hosttraffictest: no speed of a single direction found")
    return Bandwidth(component, max(to_device, default=None), max(from_device, default=None))


async def measure(node: NodeView, timeout_s: float, environment: Mapping[str, str] = os.environ) -> list[Bandwidth]:
    """Every IPU of the node in sequence, each within ``timeout_s``; empty if the node has no IPU."""
    fabric = read_fabric(GraphcoreParameters(), environment)
    try:
        found = await discover_ipus(node, fabric, all_partitions=False, timeout_s=min(timeout_s, LIST_TIMEOUT_S))
    except NotHere:
        return []
    except CannotTell as error:
        return [Bandwidth(UNNAMED, None, None, error.message)]
    measured = [await _measure_one(node, fabric, device, timeout_s) for device in found.devices]
    return measured + [
        Bandwidth(component, None, None, "on the PCI bus, but not listed by gc-info") for component in found.unlisted
    ]


async def _measure_one(node: NodeView, fabric: IpuFabric, device: IpuDevice, timeout_s: float) -> Bandwidth:
    argv = ["gc-hosttraffictest", "-d", device.device_id, "-j"]
    output = await node.commands.run(argv, timeout_s=timeout_s, environment=fabric.variables)
    if not output.ok:
        return Bandwidth(device.component, None, None, output.trouble)
    try:
        return parse(output.stdout, device.component)
    except Unreadable as error:
        return Bandwidth(device.component, None, None, str(error))

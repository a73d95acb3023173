"""Finds the NIC that leads to an address, and its rate."""

from muster_checks.base.bounded_read import Unreadable, json_document, names_in, read_integer
from muster_checks.base.declaration import NodeView

ROUTE_TIMEOUT_S = 5.0
_DEPTH = 4  # a VLAN on a bridge on a bond on its ports


async def find_device_towards(node: NodeView, address: str) -> str:
    """The network device used to reach ``address``; empty if unknown."""
    output = await node.commands.run(["ip", "-j", "route", "get", address], timeout_s=ROUTE_TIMEOUT_S)
    if not output.ok:
        return ""
    try:
        routes = json_document(output.stdout)
    except Unreadable:
        return ""
    first = routes[0] if isinstance(routes, list) and routes else None
    device = first.get("dev") if isinstance(first, dict) else None
    # Linux allows neither slashes nor more than 15 characters
    return device if isinstance(device, str) and 0 < len(device) < 16 and "/" not in device and device != ".." else ""


def link_gbit_per_s(node: NodeView, device: str, depth: int = _DEPTH) -> float | None:
    """The rate of the hardware behind ``device``; None if there is none, or if it does not report a rate.

    A veth reports 10 Gbit/s whatever carries it, so only devices with hardware count. Of a bond, one port counts: with
    the default hash, all streams between two nodes use the same port.
    """
    folder = node.path(f"/sys/class/net/{device}")
    if (folder / "device").exists():
        speed = read_integer(folder / "speed")
        # -1, also shown as an unsigned number, means unknown
        return speed / 1000 if speed is not None and 0 < speed < 10_000_000 else None
    lower = [name.removeprefix("lower_") for name in names_in(folder) if name.startswith("lower_")]
    rates = [rate for name in lower if depth and (rate := link_gbit_per_s(node, name, depth - 1)) is not None]
    return max(rates, default=None)


def nic_name(node: NodeView, device: str) -> str:
    """The NIC's name in findings: its InfiniBand name if it has one (``mlx5_0``), otherwise the device's."""
    names = names_in(node.path(f"/sys/class/net/{device}/device/infiniband")) if device else []
    return names[0] if names else device

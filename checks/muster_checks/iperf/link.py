"""Which NIC leads to an address, and what it could carry."""

from muster_checks.base.bounded_read import Unreadable, json_document, names_in, read_integer
from muster_checks.base.declaration import NodeView

ROUTE_TIMEOUT_S = 5.0
_DEPTH = 4  # a VLAN on a bridge on a bond on its ports


async def find_device_towards(node: NodeView, address: str) -> str:
    """The network device by which ``address`` is reached; empty where nobody can tell."""
    output = await node.commands.run(["ip", "-j", "route", "get", address], timeout_s=ROUTE_TIMEOUT_S)
    if not output.ok:
        return ""
    try:
        routes = json_document(output.stdout)
    except Unreadable:
        return ""
    first = routes[0] if isinstance(routes, list) and routes else None
    device = first.get("dev") if isinstance(first, dict) else None
    # Linux allows neither a slash nor more than 15 characters
    return device if isinstance(device, str) and 0 < len(device) < 16 and "/" not in device and device != ".." else ""


def link_gbit_per_s(node: NodeView, device: str, depth: int = _DEPTH) -> float | None:
    """The rate of the hardware behind ``device``; None where there is none, or it does not tell.

    A veth claims 10 Gbit/s whatever carries it, so only a device with hardware is believed. Of a bond one port counts:
    by its default hash all streams between two nodes take the same one.
    """
    folder = node.path(f"/sys/class/net/{device}")
    if (folder / "device").exists():
        speed = read_integer(folder / "speed")
        # -1, or the same as an unsigned number: unknown
        return speed / 1000 if speed is not None and 0 < speed < 10_000_000 else None
    lower = [name.removeprefix("lower_") for name in names_in(folder) if name.startswith("lower_")]
    rates = [rate for name in lower if depth and (rate := link_gbit_per_s(node, name, depth - 1)) is not None]
    return max(rates, default=None)


def nic_name(node: NodeView, device: str) -> str:
    """As findings name it: the InfiniBand name where there is one (``mlx5_0``), else the device's."""
    names = names_in(node.path(f"/sys/class/net/{device}/device/infiniband")) if device else []
    return names[0] if names else device

"""Selects the interfaces for network measurements: reads those of a node with ``ip``, and pairs those of two nodes."""

from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Annotated

import msgspec

from muster_agent.query.status_query import PLANES
from muster_checks.base.bounded_read import Unreadable, json_document
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.iperf.link import link_gbit_per_s, nic_name

DATA, MGMT = PLANES
MGMT_INTERFACE = "eth0"
IP_TIMEOUT_S = 5.0
INTERFACES_LIMIT = 64
ADDRESSES_LIMIT = 16  # per interface
# bridges and tunnels of pods, whose traffic goes over other interfaces
OVERLAYS = frozenset(
    {"bridge", "dummy", "geneve", "gre", "gretap", "ifb", "ip6gre", "ip6tnl", "ipip", "openvswitch", "sit", "tun"}
    | {"vrf", "vti", "vxlan", "wireguard"}
)

# Linux allows neither slashes nor spaces nor more than 15 characters; a percent sign would end the address before it.
# The pattern means the same in pydantic, msgspec and OpenAPI
DEVICE = r"^[^/%\u0000-\u0020\u007f-\u00a0]{1,15}$"

Address = IPv4Interface | IPv6Interface


class NodeInterface(msgspec.Struct, frozen=True, rename="camel"):
    """An interface. Raises ValueError for invalid addresses.

    nic:        name in findings (``mlx5_0``)
    gbit_per_s: link speed of the hardware; None if unknown
    addresses:  with prefix length (``10.0.0.1/24``)
    """

    name: Annotated[str, msgspec.Meta(pattern=rf"{DEVICE.removesuffix('$')}\Z")]  # Python's $ allows a line end
    nic: str = ""
    gbit_per_s: float | None = None
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.addresses:
            ip_interface(text)


class InterfacePair(msgspec.Struct, frozen=True):
    """Two interfaces that measure with each other, with one address each (without prefix length)."""

    client: NodeInterface
    client_address: str
    server: NodeInterface
    server_address: str


async def read_interfaces(node: NodeView, plane: str) -> list[NodeInterface]:
    """Interfaces of ``plane``: ``data`` (all but eth0 and lo) or ``mgmt`` (eth0, or else that of the default route).

    Raises NotHere with reason NoSecondaryInterface, or CannotTell.
    """
    known = addresses_in(_document(await node.commands.run(["ip", "-d", "-j", "addr"], timeout_s=IP_TIMEOUT_S)))
    mgmt = MGMT_INTERFACE
    if mgmt not in known:
        routes = await node.commands.run(["ip", "-j", "route", "show", "default"], timeout_s=IP_TIMEOUT_S)
        mgmt = default_device(_document(routes))
    chosen = [name for name in known if (name == mgmt) == (plane == MGMT)]
    if not chosen and plane == MGMT:
        raise CannotTell(f"no {MGMT_INTERFACE} and no default route over an interface with an address", "NoEth0")
    if not chosen:
        raise NotHere(
            f"only {mgmt or 'lo'} has an address; use plane=mgmt to measure {mgmt or MGMT_INTERFACE}",
            "NoSecondaryInterface",
        )
    return [
        NodeInterface(name, nic_name(node, name), link_gbit_per_s(node, name), known[name])
        for name in chosen[:INTERFACES_LIMIT]
    ]


def addresses_in(document: object) -> dict[str, tuple[str, ...]]:
    """From ``ip -d -j addr``: usable addresses of each interface that is up and not an overlay."""
    found: dict[str, tuple[str, ...]] = {}
    for link in document if isinstance(document, list) else []:
        if not isinstance(link, dict) or not isinstance(name := link.get("ifname"), str):
            continue
        flags = link.get("flags")
        kind = link.get("linkinfo")
        if not isinstance(flags, list) or "LOOPBACK" in flags or not {"UP", "LOWER_UP"} <= set(map(str, flags)):
            continue
        if isinstance(kind, dict) and kind.get("info_kind") in OVERLAYS:
            continue
        entries = link.get("addr_info")
        texts = [_address(entry) for entry in entries] if isinstance(entries, list) else []
        if of_use := tuple(text for text in texts if text)[:ADDRESSES_LIMIT]:
            found[name] = of_use
    return dict(sorted(found.items()))


def default_device(document: object) -> str:
    """From ``ip -j route show default``; empty if there is none."""
    routes = [route for route in document if isinstance(route, dict)] if isinstance(document, list) else []
    # the lowest metric wins; the default is 0
    best = min(routes, key=lambda route: metric if isinstance(metric := route.get("metric"), int) else 0, default={})
    return str(best.get("dev", ""))


def servers_per_interface(wanted: int | None, interfaces: int) -> int:
    """``serverspernode`` S on a node with I interfaces: S < I is one each, else S divided by I."""
    return max(1, (wanted or 1) // max(1, interfaces))


def pair_interfaces(
    client: Sequence[NodeInterface], server: Sequence[NodeInterface], plane: str
) -> list[InterfacePair]:
    """Pair each interface with one of the other node: one in the same network, else the one of the same name (for
    routed fabrics). On the plane ``mgmt``, each node has one interface."""
    found: list[InterfacePair] = []
    left = list(server)
    for alike in (_in_one_network, _of_one_family if plane == MGMT else _of_one_name):
        taken = {lane.client.name for lane in found}
        for one in client:
            if one.name in taken:
                continue
            for other in left:
                if (both := alike(one, other)) is not None:
                    found.append(InterfacePair(one, both[0], other, both[1]))
                    left.remove(other)
                    break
    return sorted(found, key=lambda lane: lane.client.name)


def _in_one_network(one: NodeInterface, other: NodeInterface) -> tuple[str, str] | None:
    for ours, theirs in _couples(one, other):
        if ours.network == theirs.network and ours.ip != theirs.ip:
            return str(ours.ip), str(theirs.ip)
    return None


def _of_one_name(one: NodeInterface, other: NodeInterface) -> tuple[str, str] | None:
    return _of_one_family(one, other) if one.name == other.name else None


def _of_one_family(one: NodeInterface, other: NodeInterface) -> tuple[str, str] | None:
    return next(((str(ours.ip), str(theirs.ip)) for ours, theirs in _couples(one, other) if ours.ip != theirs.ip), None)


def _couples(one: NodeInterface, other: NodeInterface) -> list[tuple[Address, Address]]:
    """Pairs of addresses of the same family, IPv4 first, because it is usually configured manually."""
    couples = [(ip_interface(ours), ip_interface(theirs)) for ours in one.addresses for theirs in other.addresses]
    return sorted((couple for couple in couples if couple[0].version == couple[1].version), key=lambda c: c[0].version)


def _address(entry: object) -> str:
    """``ADDRESS/LENGTH``; empty for addresses that other nodes cannot reach."""
    if not isinstance(entry, dict) or entry.get("scope") not in ("global", "site") or entry.get("temporary"):
        return ""
    try:
        return str(ip_interface(f"{entry.get('local')}/{entry.get('prefixlen')}"))
    except ValueError:
        return ""


def _document(output: Output) -> object:
    """Raises CannotTell."""
    if output.missing:
        raise CannotTell(f"{output.trouble}; install iproute2", "ToolMissing")
    if not output.ok:
        raise CannotTell(output.trouble)
    try:
        return json_document(output.stdout) if output.stdout.strip() else []
    except Unreadable as error:
        raise CannotTell(f"ip -j: {error}", "Unreadable") from None

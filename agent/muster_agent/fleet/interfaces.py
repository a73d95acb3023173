"""Over which interfaces two nodes measure: what ``ip`` says of a node's, and which of two nodes' belong together."""

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
ADDRESSES_LIMIT = 16  # of one interface
# pods' bridges and tunnels: no network of their own, all they carry goes over the others
OVERLAYS = frozenset(
    {"bridge", "dummy", "geneve", "gre", "gretap", "ifb", "ip6gre", "ip6tnl", "ipip", "openvswitch", "sit", "tun"}
    | {"vrf", "vti", "vxlan", "wireguard"}
)

# Linux allows neither a slash nor a space nor more than 15 characters; a per cent sign would end the address before it.
# Written so that it means the same to pydantic, msgspec and OpenAPI
DEVICE = r"^[^/%\u0000-\u0020\u007f-\u00a0]{1,15}$"

Address = IPv4Interface | IPv6Interface


class NodeInterface(msgspec.Struct, frozen=True, rename="camel"):
    """nic: as findings name it (``mlx5_0``); gbit_per_s: of the hardware behind it, None where that is not known;
    addresses: with their networks' length (``10.0.0.1/24``). Raises ValueError for what is no address."""

    name: Annotated[str, msgspec.Meta(pattern=rf"{DEVICE.removesuffix('$')}\Z")]  # Python's $ allows a line end
    nic: str = ""
    gbit_per_s: float | None = None
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.addresses:
            ip_interface(text)


class InterfacePair(msgspec.Struct, frozen=True):
    """Two interfaces that measure with each other, each with its address (without a network)."""

    client: NodeInterface
    client_address: str
    server: NodeInterface
    server_address: str


async def read_interfaces(node: NodeView, plane: str) -> list[NodeInterface]:
    """Of ``plane``: ``data`` (all but eth0 and lo) or ``mgmt`` (eth0; without one, whatever the default route takes).

    Raises NotHere with reason NoSecondaryInterface, or CannotTell.
    """
    known = addresses_in(_document(await node.commands.run(["ip", "-d", "-j", "addr"], timeout_s=IP_TIMEOUT_S)))
    mgmt = MGMT_INTERFACE
    if mgmt not in known:
        routes = await node.commands.run(["ip", "-j", "route", "show", "default"], timeout_s=IP_TIMEOUT_S)
        mgmt = default_device(_document(routes))
    chosen = [name for name in known if (name == mgmt) == (plane == MGMT)]
    if not chosen and plane == MGMT:
        raise CannotTell(f"there is no {MGMT_INTERFACE}, and no default route whose interface has an address", "NoEth0")
    if not chosen:
        raise NotHere(
            f"no interface but {mgmt or 'lo'} has an address (plane=mgmt measures {mgmt or MGMT_INTERFACE})",
            "NoSecondaryInterface",
        )
    return [
        NodeInterface(name, nic_name(node, name), link_gbit_per_s(node, name), known[name])
        for name in chosen[:INTERFACES_LIMIT]
    ]


def addresses_in(document: object) -> dict[str, tuple[str, ...]]:
    """From ``ip -d -j addr`` the addresses of each interface that is up, has any of use, and is no overlay."""
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
    """From ``ip -j route show default``; empty where there is none."""
    routes = [route for route in document if isinstance(route, dict)] if isinstance(document, list) else []
    # the least metric wins; without one it is 0
    best = min(routes, key=lambda route: metric if isinstance(metric := route.get("metric"), int) else 0, default={})
    return str(best.get("dev", ""))


def servers_per_interface(wanted: int | None, interfaces: int) -> int:
    """``serverspernode`` S on a node with I interfaces: S < I is one each, else S divided by I."""
    return max(1, (wanted or 1) // max(1, interfaces))


def pair_interfaces(
    client: Sequence[NodeInterface], server: Sequence[NodeInterface], plane: str
) -> list[InterfacePair]:
    """Each interface with one of the other node: that in the same network, else that of the same name (fabrics that
    route to each node). On the plane ``mgmt`` each node has one."""
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
    """Their addresses of one family, IPv4 first, as what is set up by hand."""
    couples = [(ip_interface(ours), ip_interface(theirs)) for ours in one.addresses for theirs in other.addresses]
    return sorted((couple for couple in couples if couple[0].version == couple[1].version), key=lambda c: c[0].version)


def _address(entry: object) -> str:
    """``ADDRESS/LENGTH``, empty for what nobody else can be sent to by address alone."""
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

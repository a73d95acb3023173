"""From a node's ResourceSlices to its devices by PCI address and UUID. Pure functions.

Whoever can write a slice may lie in it. So a node's slices name only its own devices: a pool that slices of another
node also name, or that has the name of another node, belongs to neither of them, unless it has this node's own name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster_checks.base.vocabulary import shorten
from muster_tainter.devices.slices.resource_slice import DriverTaint, NamedDevice, ResourceSlice, strongest

PARTS_LIMIT = 32  # devices of one card: a GPU, its MIG profiles and their places, and its form for passthrough


@dataclass(frozen=True)
class NodeDevice:
    """One card. names: all devices of the driver that are this card or parts of it; problem: why it cannot be told from
    others, empty if it can; board: its UUID, empty if the driver publishes none, or several; taints: the strongest that
    the driver has set on any part of it."""

    driver: str
    pool: str
    names: tuple[str, ...]
    problem: str = ""
    board: str = ""
    taints: tuple[DriverTaint, ...] = ()


@dataclass(frozen=True)
class NodeDevices:
    """cards: by PCI address and by UUID; counts: number of cards of each driver; any_tainted: by a driver."""

    cards: Mapping[str, NodeDevice]
    counts: Mapping[str, int]
    any_tainted: bool = False


NO_DEVICES = NodeDevices({}, {})


def map_devices(slices: Iterable[ResourceSlice], foreign_pools: Mapping[tuple[str, str], str]) -> NodeDevices:
    """slices: those of one node; foreign_pools: of their (driver, pool) pairs, those that are not only the node's, with
    the reason."""
    pools: dict[tuple[str, str], list[ResourceSlice]] = {}
    for found in slices:
        pools.setdefault((found.spec.driver, found.spec.pool.name), []).append(found)
    cards: dict[str, NodeDevice] = {}
    counts: dict[str, int] = {}
    for (driver, pool), parts in sorted(pools.items()):
        own = _cards(driver, pool, _newest(parts), foreign_pools.get((driver, pool), ""))
        counts[driver] = counts.get(driver, 0) + len(set(own.values()))
        for key, card in own.items():
            cards[key] = _merged(key, cards[key], card) if key in cards else card
    return NodeDevices(cards, counts, any(card.taints for card in cards.values()))


def _newest(slices: list[ResourceSlice]) -> list[ResourceSlice]:
    """The slices of the newest generation; all, newest first, while the driver has not written all of it."""
    newest = max(each.spec.pool.generation for each in slices)
    current = [each for each in slices if each.spec.pool.generation == newest]
    if len(current) >= current[0].spec.pool.resource_slice_count:
        return current
    return sorted(slices, key=lambda each: (-each.spec.pool.generation, each.metadata.name))


def _cards(driver: str, pool: str, slices: list[ResourceSlice], problem: str) -> dict[str, NodeDevice]:
    """One entry for each address and UUID of each card."""
    devices: dict[str, NamedDevice] = {}
    twice: set[str] = set()
    generation: dict[str, int] = {}
    for each in slices:
        for device in each.spec.kept:
            if device.name not in devices:
                devices[device.name], generation[device.name] = device, each.spec.pool.generation
            elif generation[device.name] == each.spec.pool.generation:
                twice.add(device.name)
    keys = {name: (device.address, device.uuid) for name, device in devices.items()}
    address_of: dict[str, str] = {}  # by UUID: a part of a card may publish only the card's UUID
    for address, uuid in keys.values():
        if address and uuid:
            address_of.setdefault(uuid, address)
    parts: dict[str, set[str]] = {}
    uuids: dict[str, set[str]] = {}
    for name, (address, uuid) in keys.items():
        card = address or address_of.get(uuid, uuid)
        if card:
            parts.setdefault(card, set()).add(name)
            uuids.setdefault(card, set()).update({uuid} - {""})
    result: dict[str, NodeDevice] = {}
    for card, names in parts.items():
        why = problem
        if names & twice:
            why = f"driver {driver} names device {shorten(min(names & twice), 80)} twice"
        elif len(names) > PARTS_LIMIT:
            why = f"driver {driver} names {len(names)} devices for it, more than {PARTS_LIMIT}"
        board = next(iter(uuids[card])) if len(uuids[card]) == 1 else ""
        taints = strongest(dict.fromkeys(taint for name in sorted(names) for taint in devices[name].taints))
        found = NodeDevice(driver, pool, tuple(sorted(names)), why, board, taints)
        for key in {card} | uuids[card]:
            result[key] = _merged(key, result[key], found) if key in result else found
    return result


def _merged(key: str, one: NodeDevice, other: NodeDevice) -> NodeDevice:
    """Two cards with the same address or UUID."""
    if one.driver != other.driver:
        why = f"drivers {one.driver} and {other.driver} both name {key}"
    else:
        why = f"driver {one.driver} names {key} in several places"
    taints = strongest(dict.fromkeys((*one.taints, *other.taints)))
    return NodeDevice(one.driver, one.pool, one.names, one.problem or why, taints=taints)

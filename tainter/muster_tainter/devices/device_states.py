"""What is known of each device of a node: is it in use, who keeps it out, and what Muster itself knows of it. Pure.

Two may keep a device out: Muster, by its rules or its node's taint, and the driver, by a taint in its ResourceSlice.
Each of them stands on its own: a driver's taint opens no fault, and no proof of Muster's removes it.
"""

from collections.abc import Iterable, Iterator, Set
from enum import StrEnum

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_tainter.devices.slices.device_map import NodeDevice, NodeDevices
from muster_tainter.devices.slices.resource_slice import DriverTaint
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.messages import withheld_reason
from muster_tainter.faults.policy_match import confirmed_at, match_as_node
from muster_tainter.faults.record.node_record import DeviceStage, Fault, NodeRecord, OurTaint, as_our_taint
from muster_tainter.policy.rules import Policy

SHOWN_LIMIT = 128  # devices of a node; the kubelet's own limit is lower than that for most resources
_TEXT_LIMIT = 160  # bytes of a driver's taint
_STRONGER = ("NoExecute", "NoSchedule")
_NAMES_SHOWN = 4  # parts of a card


class DeviceMark(StrEnum):
    """What a device is shown as; the worst first. The browser receives the letters (page/glyphs.js)."""

    WITHHELD = "W"  # a fault requires that it is kept out, and a budget or a pause withholds that
    WITH_NODE = "T"  # it is bad, and its whole node is tainted
    ALONE = "Q"  # Muster keeps it out of use alone
    FAULTY = "F"  # it has an open fault that requires nothing, or not yet
    BY_DRIVER = "D"  # its driver keeps it out, and Muster does not
    WORKING = "."


class DeviceFault(msgspec.Struct, frozen=True):
    """The worst open fault of a device. since: RFC 3339."""

    check: str
    reason: str
    since: str


class DeviceClosure(msgspec.Struct, frozen=True, rename="camel"):
    """The fault of a device that was closed last, within a day. how: ``proof`` and others, as in ClosedFault."""

    check: str
    reason: str
    closed_at: str
    how: str
    by: str


class ShownTaint(msgspec.Struct, frozen=True, rename="camel"):
    """A driver's taint. keeps_out: False for one that only informs. since: RFC 3339, or empty."""

    text: str
    keeps_out: bool
    since: str


class DeviceState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One device. device: its PCI address or UUID; names: of the driver, for it and its parts

    taints: the driver's; fault, closed: what Muster itself knows of it; problem: why Muster could not keep it out alone
    """

    device: str
    driver: str
    names: tuple[str, ...]
    mark: DeviceMark
    taints: tuple[ShownTaint, ...] = ()
    fault: DeviceFault | None = None
    closed: DeviceClosure | None = None
    problem: str = ""


def device_states(
    node: Node, memory: NodeRecord, devices: NodeDevices, policy: Policy, now: float
) -> tuple[DeviceState, ...]:
    """By driver and PCI address. now: seconds since the epoch."""
    faults: dict[str, list[Fault]] = {}
    for fault in memory.open:
        key = device_key(fault.component)
        if key is not None:
            faults.setdefault(key, []).append(fault)
    held = {as_our_taint(taint) for taint in node.spec.taints} & set(memory.ours)
    withheld = bool(withheld_reason(node))
    found = []
    for keys, card in cards_of(devices):
        own = [fault for key in keys for fault in faults.get(key, ())]
        marked = [(_mark_of(fault, policy, now, held, withheld=withheld), fault) for fault in own]
        order = list(DeviceMark)
        mark, worst = min(marked, key=lambda each: order.index(each[0]), default=(DeviceMark.WORKING, None))
        if worst is None and any(taint.keeps_out for taint in card.taints):
            mark = DeviceMark.BY_DRIVER
        found.append(
            DeviceState(
                device=keys[0],
                driver=card.driver,
                names=card.names[:_NAMES_SHOWN],
                mark=mark,
                taints=tuple(map(_shown, card.taints)),
                fault=None if worst is None else DeviceFault(worst.check, worst.reason, worst.since),
                closed=_last_closed(memory, keys),
                problem=card.problem,
            )
        )
    return tuple(found[:SHOWN_LIMIT])


def marks(states: Iterable[DeviceState]) -> str:
    """One letter for each device of the drivers of which something is out: ``.Q......``; ``|`` between two drivers.
    Empty if every device works."""
    by_driver: dict[str, str] = {}
    for state in states:
        by_driver[state.driver] = by_driver.get(state.driver, "") + state.mark
    return "|".join(letters for letters in by_driver.values() if letters.strip(DeviceMark.WORKING))


def driver_taints(devices: NodeDevices) -> tuple[str, ...]:
    """All taints of drivers on the devices of a node: ``0000:13:00.0 gpu.nvidia.com/xid=79:NoSchedule``."""
    return tuple(f"{keys[0]} {format_driver_taint(taint)}" for keys, card in cards_of(devices) for taint in card.taints)


def tainted_cards(devices: NodeDevices) -> Iterator[tuple[str, str]]:
    """(driver, strongest effect) of each device that a driver has tainted; an effect that only informs is ``None``."""
    for _, card in cards_of(devices):
        if card.taints:
            effects = {taint.effect for taint in card.taints}
            yield card.driver, next((each for each in _STRONGER if each in effects), "None")


def format_driver_taint(taint: DriverTaint) -> str:
    """As on a Node: ``gpu.nvidia.com/xid=79:NoSchedule``."""
    value = f"={taint.value}" if taint.value else ""
    return shorten(f"{taint.key}{value}:{taint.effect}", _TEXT_LIMIT)


def _shown(taint: DriverTaint) -> ShownTaint:
    return ShownTaint(format_driver_taint(taint), taint.keeps_out, shorten(taint.time_added, 40))


def cards_of(devices: NodeDevices) -> list[tuple[list[str], NodeDevice]]:
    """Each card once, by driver and PCI address, with its address and its UUIDs, the address first."""
    found: dict[tuple[str, str, tuple[str, ...]], tuple[list[str], NodeDevice]] = {}
    for key, card in devices.cards.items():
        keys, _ = found.setdefault((card.driver, card.pool, card.names), ([], card))
        keys.append(key)
        keys.sort(key=lambda each: (not _is_address(each), each))
    return sorted(found.values(), key=_place)


def _place(item: tuple[list[str], NodeDevice]) -> tuple[str, bool, str]:
    keys, card = item
    return card.driver, not _is_address(keys[0]), keys[0]


def _is_address(key: str) -> bool:
    return key[-2:-1] == "."


def _mark_of(fault: Fault, policy: Policy, now: float, held: Set[OurTaint], *, withheld: bool) -> DeviceMark:
    if fault.device == DeviceStage.ALONE:
        return DeviceMark.ALONE
    want = match_as_node(fault, policy)
    if want.taint is None or confirmed_at(fault, want, now) > now:
        return DeviceMark.FAULTY
    if want.taint in held:
        return DeviceMark.WITH_NODE
    return DeviceMark.WITHHELD if withheld and not fault.over else DeviceMark.FAULTY


def _last_closed(memory: NodeRecord, keys: Iterable[str]) -> DeviceClosure | None:
    """The record lists the newest first."""
    own = set(keys)
    for closed in memory.closed:
        if device_key(closed.component) in own:
            return DeviceClosure(closed.check, closed.reason, closed.closed_at, closed.how, closed.by)
    return None

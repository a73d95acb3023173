"""How many devices faults cost: those that are bad, and the healthy ones beside them. Pure functions."""

from dataclasses import dataclass

from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.policy_match import match_as_node
from muster_tainter.faults.record.node_record import DeviceStage, Fault, as_our_taint, read_record
from muster_tainter.policy.rules import Policy

HOUR_S = 3600.0


@dataclass(frozen=True)
class FaultCost:
    """What a fault of a single device costs while it is open.

    alone:   only the device is kept out, and not its node
    devices: of the same driver on the node, with this one
    open_s:  how long the fault has been open
    """

    alone: bool
    devices: int
    open_s: float

    def device_hours(self, lost: int) -> float:
        """Of so many devices."""
        return lost * self.open_s / HOUR_S


@dataclass(frozen=True)
class DeviceBalance:
    """Devices of one driver on one node. alone: kept out alone; with_node: on a tainted node, bad or not; spared: in
    use beside one that is kept out alone, which a taint of the node would have cost."""

    alone: int = 0
    with_node: int = 0
    spared: int = 0


def fault_cost(fault: Fault, devices: NodeDevices, now: float) -> FaultCost | None:
    """None if no ResourceSlice of the node names the device. now: seconds since the epoch."""
    card = devices.cards.get(device_key(fault.component) or "")
    since = seconds(fault.since)
    if card is None or not since:
        return None
    alone = fault.device == DeviceStage.ALONE
    return FaultCost(alone, devices.counts.get(card.driver, 0), max(0.0, now - since))


def device_balance(node: Node, devices: NodeDevices) -> dict[str, DeviceBalance]:
    """By driver; without drivers of which nothing is out of use."""
    memory = read_record(node)
    if {as_our_taint(taint) for taint in node.spec.taints} & set(memory.ours):
        return {driver: DeviceBalance(with_node=count) for driver, count in devices.counts.items() if count}
    out: dict[str, set[object]] = {}
    for fault in memory.open:
        card = devices.cards.get(device_key(fault.component) or "") if fault.device == DeviceStage.ALONE else None
        if card is not None:
            out.setdefault(card.driver, set()).add(card)
    return {
        driver: DeviceBalance(alone=len(cards), spared=max(0, devices.counts.get(driver, 0) - len(cards)))
        for driver, cards in out.items()
    }


def devices_lost(node: Node, devices: NodeDevices, policy: Policy) -> int:
    """Healthy devices of the drivers concerned, if the node has a taint of Muster and every fault that requires one is
    of a device that its ResourceSlices name; else 0."""
    memory = read_record(node)
    there = {as_our_taint(taint) for taint in node.spec.taints} & set(memory.ours)
    if not there:
        return 0
    bad: dict[str, set[object]] = {}
    for fault in memory.open:
        if match_as_node(fault, policy).taint not in there:
            continue
        card = devices.cards.get(device_key(fault.component) or "")
        if card is None:
            return 0  # a fault of the whole machine, which no quarantine of a device would spare
        bad.setdefault(card.driver, set()).add(card)
    return sum(devices.counts.get(driver, 0) - len(cards) for driver, cards in bad.items())

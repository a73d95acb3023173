"""How many healthy devices a fault of single devices costs. Pure functions."""

from muster_kube.api.objects import Node
from muster_tainter.devices.device_map import NodeDevices
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.node_record import as_our_taint, read_record
from muster_tainter.faults.policy_match import match_as_node
from muster_tainter.policy.rules import Policy


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

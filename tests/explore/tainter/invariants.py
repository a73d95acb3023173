"""What must hold of a Node when all is at rest."""

import msgspec
from tests.explore.tainter.state import Truth

from muster_kube.api.objects import Node
from muster_tainter.faults.desired_state import FAULTY_LABEL
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import NodeRecord, OurTaint, as_our_taint, read_record
from muster_tainter.policy.rules import OUR_PREFIX, Policy


def wrong_node(node: Node, truth: Truth, policy: Policy, now: float, *, full: bool) -> str:
    """What is wrong with a Node at rest; empty if nothing is. full: there is no room in the budget."""
    memory = read_record(node)
    wants = wanted_taints(memory, policy, now)
    has = our_taints(node)
    if not has <= wants:
        return "a taint of ours that no open fault wants"
    if wants - has and not full:
        return "an open fault wants a taint, there is room, and it is not set"
    if bool(has) != (FAULTY_LABEL in node.metadata.labels):
        return "the label does not say whether there is a taint"
    opened = any(fault.reason == "Xid79" for fault in memory.open)
    if truth.wanted and not opened:
        return "a fault that nobody closed is not open"
    if truth.other and not any(fault.reason == "Other" for fault in memory.open):
        return "the fault of another check is not open"
    if truth.cleared and opened and not truth.wanted:
        return "a fault is open though a person cleared it and it did not fire again"
    if not truth.number and opened:
        return "a fault is open that never fired"
    return ""


def our_taints(node: Node) -> set[OurTaint]:
    return {as_our_taint(taint) for taint in node.spec.taints if taint.key.startswith(OUR_PREFIX)}


def foreign_taints(node: Node) -> tuple[str, ...]:
    return tuple(sorted(taint.key for taint in node.spec.taints if not taint.key.startswith(OUR_PREFIX)))


def wanted_taints(memory: NodeRecord, policy: Policy, now: float) -> set[OurTaint]:
    found = set()
    for fault in memory.open:
        want = match_policy(fault, policy)
        if want.taint is not None and confirmed_at(fault, want, now) <= now:
            found.add(want.taint)
    return found


_decoder = msgspec.json.Decoder(Node)
_nodes: dict[bytes, Node] = {}


def decode_node(raw: bytes) -> Node:
    known = _nodes.get(raw)
    if known is None:
        known = _nodes[raw] = _decoder.decode(raw)
    return known

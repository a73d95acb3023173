"""Which taints of a Node's record the tainter believes to be its own.

The kubelet of a node can write the annotation that holds the record, but no taint. So the record alone must not have
the tainter remove a taint, which may be somebody else's.
"""

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node, Taint
from muster_tainter.faults.messages import MESSAGE_LIMIT, Notice, format_taint
from muster_tainter.faults.record.node_record import ANNOTATION, NodeRecord, OurTaint, as_our_taint
from muster_tainter.policy.rules import OUR_PREFIX, Policy


def trusted_record(memory: NodeRecord, node: Node, policy: Policy) -> NodeRecord:
    """``memory`` with only those of its taints that a rule sets or that have our prefix, and with the policy's
    ``formerTaints`` that are on the node."""
    ours = tuple(taint for taint in memory.ours if _can_be_ours(taint, policy))
    if policy.former_taints:
        there = (as_our_taint(taint) for taint in node.spec.taints)
        ours = tuple(dict.fromkeys((*ours, *(taint for taint in there if policy.is_former(_plain(taint))))))
    return memory if ours == memory.ours else msgspec.structs.replace(memory, ours=ours)


def untrusted_taints(node: Node, stored: NodeRecord, trusted: NodeRecord) -> tuple[str, ...]:
    """The taints on the node that only the record calls ours, and that stay; as kubectl writes them."""
    there = {as_our_taint(taint) for taint in node.spec.taints}
    return tuple(format_taint(taint) for taint in stored.ours if taint in there and taint not in trusted.ours)


def untrusted_notices(node: Node, stored: NodeRecord, trusted: NodeRecord) -> list[Notice]:
    """One Event about them, if there are any."""
    kept = untrusted_taints(node, stored, trusted)
    if not kept:
        return []
    text = (
        f"annotation {ANNOTATION} names {', '.join(kept)}, which no rule of the policy sets: not "
        "removed; if an earlier policy set it, list it in formerTaints, else find out who wrote the annotation"
    )
    return [Notice("TaintNotInPolicy", shorten(text, MESSAGE_LIMIT), "memory")]


def _can_be_ours(taint: OurTaint, policy: Policy) -> bool:
    return taint.key.startswith(OUR_PREFIX) or policy.can_have_set(_plain(taint))


def _plain(taint: OurTaint) -> Taint:
    return Taint(key=taint.key, effect=taint.effect, value=taint.value)

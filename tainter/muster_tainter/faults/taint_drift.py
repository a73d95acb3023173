"""A taint of ours is gone though its fault is open: did a person take it off, or did a controller overwrite it?

Before Kubernetes 1.26 controllers patch the whole list of taints from copies that may be stale, and drop what others
added meanwhile. So a removal is a person's only if it removed our taint and nothing else changed, and the manager that
managedFields name for spec.taints is none of the listed controllers.

A write that empties the list leaves no manager at all (measured on 1.20: ``kubectl taint node x muster.dev/faulty-`` of
the only taint). It is a person's if no other taint came or went on that node for a while: then no stale copy could
hold anything to write but ours, so whoever emptied the list meant our taint.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from muster_kube.api.objects import ManagedNode, Taint
from muster_tainter.faults.node_record import OurTaint, as_our_taint
from muster_tainter.policy.rules import Policy

SETTLED_S = 2.0  # informers of controllers lag by less
NOBODY = "unknown (the list of taints is empty and has no manager)"


@dataclass(frozen=True)
class TaintRemoval:
    """One change of a Node's taints as the watch showed it.

    before, after:  the whole lists
    settled_s:      how long before it no taint but ours had come or gone on that node, as far as was seen
    """

    before: tuple[Taint, ...]
    after: tuple[Taint, ...]
    settled_s: float


def find_removers(
    missing: Iterable[OurTaint], seen: TaintRemoval | None, node: ManagedNode, policy: Policy, our_manager: str
) -> dict[OurTaint, str]:
    """Of ``missing``, the taints that a person took off, each with that person's field manager.

    ``seen``: the change in which they went, None if nobody watched then; ``node``: as it is now, with managedFields.
    """
    if seen is None or not _same(seen.after, node.spec.taints):
        return {}
    missing = tuple(missing)
    gone = [taint for taint in seen.before if taint not in seen.after]
    if any(taint not in seen.before for taint in seen.after) or not {as_our_taint(taint) for taint in gone} <= set(
        missing
    ):
        return {}  # something else changed in the same write: its author had another list in mind
    managers = [entry.manager for entry in node.metadata.managed_fields if _owns_taints(entry.fields)]
    if not managers:
        by = NOBODY if not seen.after and seen.settled_s >= SETTLED_S else ""
    elif any(policy.is_controller(manager) or manager == our_manager for manager in managers):
        by = ""
    else:
        by = managers[-1]
    if not by:
        return {}
    went = {as_our_taint(taint) for taint in gone}
    return {taint: by for taint in missing if taint in went}


def _same(one: tuple[Taint, ...], other: tuple[Taint, ...]) -> bool:
    return {as_our_taint(taint) for taint in one} == {as_our_taint(taint) for taint in other}


class _Fields(msgspec.Struct):
    spec: dict[str, object] = msgspec.field(default_factory=dict, name="f:spec")


_fields = msgspec.json.Decoder(_Fields)


def _owns_taints(raw: msgspec.Raw) -> bool:
    """``fieldsV1`` names spec.taints: whole (a list without keys: 1.20 to 1.35), or by part."""
    try:
        return "f:taints" in _fields.decode(raw).spec
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False

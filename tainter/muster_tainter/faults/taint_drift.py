"""Decides whether a taint that is missing although its fault is open was removed by a person or by a controller.

Before Kubernetes 1.26, controllers patch the whole list of taints from possibly stale copies, and drop what others
added meanwhile. So a removal counts as manual only if it removed our taint and changed nothing else, and the manager of
spec.taints in managedFields is not a listed controller.

A write that empties the list leaves no manager (measured on 1.20: ``kubectl taint node x muster.dev/faulty-`` with only
one taint). It counts as manual if no other taint changed on that node for a while: then a stale copy could differ only
in our taint, so the removal was intended.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from muster_kube.api.objects import ManagedNode, Taint
from muster_tainter.faults.record.node_record import OurTaint, as_our_taint
from muster_tainter.policy.rules import Policy

SETTLED_S = 2.0  # informers of controllers lag by less
NOBODY = "unknown (the list of taints is empty and has no manager)"


@dataclass(frozen=True)
class TaintRemoval:
    """One change of a Node's taints, from the watch.

    before, after:  the complete lists
    settled_s:      how long before it no other taint had changed on that node, as far as observed
    """

    before: tuple[Taint, ...]
    after: tuple[Taint, ...]
    settled_s: float


def find_removers(
    missing: Iterable[OurTaint], seen: TaintRemoval | None, node: ManagedNode, policy: Policy, our_manager: str
) -> dict[OurTaint, str]:
    """The taints of ``missing`` that a person removed, each with the field manager.

    ``seen``: the change that removed them, None if nobody watched; ``node``: the current one, with managedFields.
    """
    if seen is None or not _same(seen.after, node.spec.taints):
        return {}
    missing = tuple(missing)
    gone = [taint for taint in seen.before if taint not in seen.after]
    if any(taint not in seen.before for taint in seen.after) or not {as_our_taint(taint) for taint in gone} <= set(
        missing
    ):
        return {}  # something else changed in the same write, so it was not a removal of our taint only
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
    """Whether ``fieldsV1`` contains spec.taints: as a whole (a list without keys: 1.20 to 1.35), or in part."""
    try:
        return "f:taints" in _fields.decode(raw).spec
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False

"""The annotation ``muster.dev/role`` of a Node, beside the label of that name: since when the node has its role, and
which node it replaces. It is for people: no number of spares depends on it.
"""

import msgspec

from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.decision_context import AssignedRole
from muster_tainter.policy.spares import SpareRole

ROLE_KEY = "muster.dev/role"  # of the label, whose value is a SpareRole, and of the annotation


class RoleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """since: RFC 3339. replaces: name of the node with a fault for which the spare was released."""

    role: SpareRole = SpareRole.NONE
    since: str = ""
    replaces: str = ""


_decoder = msgspec.json.Decoder(RoleRecord)


def read_role_record(node: Node) -> RoleRecord:
    """Empty if there is none, or if it cannot be decoded: the next decision writes it again."""
    try:
        return _decoder.decode(node.metadata.annotations.get(ROLE_KEY, "{}"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return RoleRecord()


def role_annotation(node: Node, assigned: AssignedRole, now: float) -> str | None:
    """The annotation's value with that role; None for no role. ``now``: seconds since the epoch."""
    if assigned.role is SpareRole.NONE:
        return None
    known = read_role_record(node)
    if known.since and (known.role, known.replaces) == (assigned.role, assigned.replaces):
        return node.metadata.annotations[ROLE_KEY]
    since = known.since if known.since and known.role is assigned.role else rfc3339_whole(now)
    return msgspec.json.encode(RoleRecord(assigned.role, since, assigned.replaces)).decode()

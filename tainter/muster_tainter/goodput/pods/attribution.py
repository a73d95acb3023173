"""Why a pod ended early: the table of rules. Pure.

In doubt a pod's end is its own. A fault counts only if the tainter has recorded it on the pod's node, which no tenant
can write, and only for pods that were not sent to the node after it had its taint: who tolerates the taint of a broken
node has chosen it. See docs/security.md.
"""

from dataclasses import dataclass

from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_tainter.faults.desired_state import READY
from muster_tainter.faults.record.node_record import LOST_CHECK, NodeRecord, read_record
from muster_tainter.goodput.causes import INTERRUPTS, Cause, Via
from muster_tainter.goodput.pods.pod_facts import End
from muster_tainter.policy.rules import SILENT

LATE_S = 120.0
"""A fault that is found this long after an end may have caused it: the kernel log is read at once, but counters and
Xids of other processes are read once a minute, and the watch of a busy API server may be behind."""
PEERS_S = 120.0
"""Pods of one job that end within this time ended for one cause: a collective operation times out after 30 to 60 s in
most programs, and their pods have 30 s to stop."""
EXTERNAL = "ipu/"  # components that are not on the node that reports them

_NEVER = float("inf")
# the stronger evidence stays; an incident may be known only after its first fault
STRONGEST_FIRST = (Cause.DRAIN, Cause.INCIDENT, Cause.FAULT, Cause.PREEMPTION)
_STRENGTH: dict[Cause | None, int] = {cause: -rank for rank, cause in enumerate((*STRONGEST_FIRST, None))}


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault of the node's record. began, until: seconds since the epoch."""

    began: float
    until: float
    incident: bool
    reason: str
    on_ipu: bool = False


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What is known of a node at one moment. tainted: since when it has taints of ours; 0: it has none. drained: pods
    are kept off by us or by a person, so an eviction is a drain; lost: not Ready, or deleted."""

    spans: tuple[FaultSpan, ...] = ()
    tainted: float = 0.0
    cordoned: bool = False
    lost: bool = False


NOTHING = NodeEvidence()
GONE = NodeEvidence(lost=True)


@dataclass(frozen=True, slots=True)
class PodEnd:
    """bound, at: seconds since the epoch. on_node: its devices are the node's own, not IPUs behind the network."""

    bound: float
    at: float
    how: End
    on_node: bool = True


def evidence_of(node: Node | None) -> NodeEvidence:
    """None: the Node is deleted."""
    if node is None:
        return GONE
    record = read_record(node)
    ready = next((each.status for each in node.status.conditions if each.type == READY), "True")
    return NodeEvidence(
        spans=_spans(record),
        tainted=(seconds(record.tainted) or 1.0) if record.ours else 0.0,
        cordoned=node.spec.unschedulable,
        lost=ready != "True",
    )


def _spans(record: NodeRecord) -> tuple[FaultSpan, ...]:
    spans = [
        FaultSpan(
            _first(fault.first_seen, fault.since),
            seconds(fault.over) if fault.over else _NEVER,
            bool(fault.incident),
            fault.reason,
            fault.component.startswith(EXTERNAL),
        )
        for fault in record.open
        if fault.check != LOST_CHECK and fault.key != SILENT
    ]
    # of a fault that ended before Muster acted, or that the agent never reported, nothing is known
    spans += [
        FaultSpan(seconds(c.since), seconds(c.closed_at), False, c.reason, c.component.startswith(EXTERNAL))
        for c in record.closed
        if c.check != LOST_CHECK and c.key != SILENT and c.since and c.how != "disowned"
    ]
    return tuple(spans)


def _first(*times: str) -> float:
    return min((at for at in map(seconds, times) if at), default=0.0)


def from_node(end: PodEnd, node: NodeEvidence) -> Cause | None:
    """The cause that the node shows; None: none. Only for pods that did not succeed."""
    if end.how is End.SUCCEEDED:
        return None
    spans = [span for span in node.spans if _covers(span, end, node)]
    if spans:
        if end.how in (End.EVICTED, End.TAINTED) and node.tainted and node.tainted <= end.at:
            return Cause.DRAIN
        return Cause.INCIDENT if any(span.incident for span in spans) else Cause.FAULT
    if end.how is End.EVICTED and node.cordoned:
        return Cause.DRAIN
    return Cause.FAULT if end.how in (End.TAINTED, End.LOST) and node.lost and node is not GONE else None


def _covers(span: FaultSpan, end: PodEnd, node: NodeEvidence) -> bool:
    if span.on_ipu and end.on_node:
        return False
    chosen = node.tainted and node.tainted < end.bound and span.began < end.bound
    return not chosen and end.bound < span.until and span.began <= end.at + LATE_S and end.at <= span.until


def stronger(one: Cause | None, other: Cause | None) -> Cause | None:
    return other if _STRENGTH[other] > _STRENGTH[one] else one


def from_end(how: End) -> Cause:
    """The cause that a pod's own end shows."""
    match how:
        case End.SUCCEEDED:
            return Cause.GOODPUT
        case End.PREEMPTED:
            return Cause.PREEMPTION
        case End.NODE:
            return Cause.FAULT
        case End.OWN | End.DELETED:
            return Cause.USER
    return Cause.UNKNOWN


def primary(how: End, node: Cause | None) -> Cause | None:
    """What a pod's end shows its peers; None: nothing."""
    if how is End.SUCCEEDED:
        return None
    own = from_end(how)
    return node or (own if own in INTERRUPTS else None)


def settle(how: End, node: Cause | None, peers: Cause | None) -> tuple[Cause, Via]:
    """node: :func:`from_node`; peers: the strongest cause from a peer's own node at the same time."""
    if how is not End.SUCCEEDED and node is not None:
        return node, Via.NODE
    own = from_end(how)
    if own in INTERRUPTS:
        return own, Via.NODE
    if peers in INTERRUPTS and how in (End.OWN, End.DELETED, End.STOPPED, End.LOST):
        return peers, Via.PEER
    return own, Via.OWN

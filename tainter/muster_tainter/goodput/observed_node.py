"""What the ledger reads of a node: where its time is booked, and what it shows about the ends of its pods. Pure."""

import math
from dataclasses import dataclass

from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.desired_state import READY
from muster_tainter.faults.record.check_history import TESTING_LABEL
from muster_tainter.faults.record.node_record import NodeRecord, read_record
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.pods.attribution import NodeEvidence, evidence_of
from muster_tainter.goodput.pods.pod_facts import count_devices
from muster_tainter.policy.rules import OUR_PREFIX, SPARE_KEY, STARTUP_KEY

_KEEPS_OFF = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Outage:
    """since, until: seconds since the epoch; since 0: unknown; until 0: it goes on. A node is out once, however many
    faults it has: from the first fault until none is open, held ones included."""

    since: float
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """place: index of its row of the books. capacity: its accelerators. state: of those that no pod holds.

    outage: the present one; ended: faults of the last day that are closed, as recorded
    """

    place: int
    capacity: int
    state: Cause
    evidence: NodeEvidence
    outage: Outage | None = None
    ended: tuple[Outage, ...] = ()


def observe_node(node: Node, health: object, place: int, prefixes: tuple[str, ...]) -> ObservedNode:
    """prefixes: of accelerator resources."""
    record = read_record(node)
    outage = None
    if record.open:
        first = min(record.open, key=lambda fault: seconds(fault.since) or math.inf)
        outage = Outage(seconds(first.since), 0.0, first.reason)
    return ObservedNode(
        place=place,
        capacity=count_devices(node.status.capacity, prefixes),
        state=state_of(node, health),
        evidence=evidence_of(node),
        outage=outage,
        ended=tuple(Outage(seconds(each.since), seconds(each.closed_at), each.reason) for each in record.closed),
    )


def state_of(node: Node, health: object) -> Cause:
    """As in the simulation: broken, then held, then tested; a node that is not Ready is broken. ``FAULT`` ends when no
    open fault has a finding any more: then the node waits for its proof, or for a person."""
    record = read_record(node)
    keys = {taint.key for taint in node.spec.taints if taint.effect in _KEEPS_OFF}
    ready = next((each.status for each in node.status.conditions if each.type == READY), "True")
    waiting = [fault for fault in record.open if not fault.over]
    if record.open and record.ours and not waiting:
        return Cause.HOLD
    if waiting and (record.ours or _reported(record, health)):
        broken = _reported(record, health)
        incident = any(fault.incident for fault in waiting)
        return (Cause.INCIDENT if incident else Cause.FAULT) if broken else Cause.TEST
    if ready != "True":
        return Cause.FAULT
    if STARTUP_KEY in keys or TESTING_LABEL in node.metadata.labels:
        return Cause.TEST
    if SPARE_KEY in keys:
        return Cause.SPARE
    if node.spec.unschedulable:  # not taints of others: many fleets keep one on all nodes with accelerators
        return Cause.CORDON
    return Cause.UNKNOWN if record.ours or any(key.startswith(OUR_PREFIX) for key in keys) else Cause.IDLE


def _reported(record: NodeRecord, health: object) -> bool:
    """Whether the node's agent still reports the finding of an open fault. Without a report it may."""
    if not isinstance(health, NodeHealth) or not health.status.checks:
        return True
    there = {
        (check.name, finding.component, finding.reason)
        for check in health.status.checks
        for finding in check.findings
        if finding.verdict == "FAIL"
    }
    local = {check.name for check in health.status.checks}
    return any(fault.key in there or fault.check not in local for fault in record.open if not fault.over)

"""What a canary would lead to: the decision about a made-up FAIL, by the same code as that about a real one. Pure.

The decision is about copies: the node without anything of ours, and a NodeHealth whose only finding is the made-up one.
It is never applied, so no policy can make a canary taint a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_kube.api.objects import Node
from muster_kube.nodehealth import CANARY, NodeHealth, NodeHealthSpec, ReportedCheck, ReportedFinding
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import OUR_ANNOTATIONS, OUR_LABELS, decide, is_managed
from muster_tainter.faults.messages import format_taint
from muster_tainter.policy.rules import OUR_PREFIX, Policy


class Arrival(StrEnum):
    """ARRIVED: a fault would have tainted the node. The others: the setting that would have kept the taint off."""

    ARRIVED = "arrived"
    PAUSED = "paused"
    BUDGET = "budget"
    RULE = "rule"
    UNMANAGED = "unmanaged"


@dataclass(frozen=True)
class Outcome:
    """text: for people."""

    arrival: Arrival
    text: str


def try_canary(
    node: Node, health: NodeHealth, policy: Policy, now: float, *, paused: str, shortage: Callable[[], str]
) -> Outcome:
    """paused: why nothing may be tainted now, or empty; shortage: why the budgets have no room, or empty. now: seconds
    since the epoch."""
    if not is_managed(node):
        return Outcome(Arrival.UNMANAGED, "the node has the label muster.dev/managed=false")
    if paused:
        return Outcome(Arrival.PAUSED, paused)
    decision = decide(without_ours(node), made_up(health), policy, now, context=DecisionContext())
    if not decision.taint_changes:
        return Outcome(Arrival.RULE, f"no rule of the policy taints at once for a FAIL of class {FaultClass.REBOOT}")
    if reason := shortage():
        return Outcome(Arrival.BUDGET, reason)
    taints = ", ".join(format_taint(change.taint) for change in decision.taint_changes if change.added)
    return Outcome(Arrival.ARRIVED, f"a fault would have set {taints}")


def without_ours(node: Node) -> Node:
    """A copy without our taints, labels and annotations."""
    labels = {key: value for key, value in node.metadata.labels.items() if key not in OUR_LABELS}
    annotations = {key: value for key, value in node.metadata.annotations.items() if key not in OUR_ANNOTATIONS}
    taints = tuple(taint for taint in node.spec.taints if not taint.key.startswith(OUR_PREFIX))
    metadata = msgspec.structs.replace(node.metadata, labels=labels, annotations=annotations)
    return msgspec.structs.replace(node, metadata=metadata, spec=msgspec.structs.replace(node.spec, taints=taints))


def made_up(health: NodeHealth) -> NodeHealth:
    """A copy whose only finding is the canary's."""
    status = health.status
    finding = ReportedFinding(
        component="host",
        reason="Canary",
        verdict=Verdict.FAIL.value,
        fault_class=FaultClass.REBOOT.value,
        first_seen=status.canary.at,
        last_seen=status.canary.at,
    )
    check = ReportedCheck(name=CANARY, verdict=Verdict.FAIL.value, findings=(finding,), last_occurrence=1)
    status = msgspec.structs.replace(status, verdict=Verdict.FAIL.value, checks=(check,), answers=(), due=())
    return msgspec.structs.replace(health, spec=NodeHealthSpec(), status=status)

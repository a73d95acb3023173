"""What the tainter keeps of each Node and NodeHealth: a few kB, whatever else the objects carry.

Given to the reflectors as ``transform``. Nothing is dropped that a decision or a PATCH needs.
"""

import sys

import msgspec

from muster_kube import nodehealth
from muster_kube.objects import Condition, ManagedNode, Metadata, Node, NodeSpec, NodeStatus
from muster_tainter.desired import CONDITION, OUR_ANNOTATIONS, OUR_LABELS

_intern = sys.intern


def slim_node(node: Node | ManagedNode) -> Node:
    meta = node.metadata
    return Node(
        metadata=Metadata(
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            labels={key: _intern(meta.labels[key]) for key in OUR_LABELS if key in meta.labels},
            annotations={key: meta.annotations[key] for key in OUR_ANNOTATIONS if key in meta.annotations},
        ),
        spec=NodeSpec(taints=node.spec.taints),
        status=NodeStatus(conditions=tuple(_slim_condition(c) for c in node.status.conditions if c.type == CONDITION)),
    )


def _slim_condition(condition: Condition) -> Condition:
    return Condition(
        type=CONDITION,
        status=_intern(condition.status),
        reason=_intern(condition.reason),
        message=_intern(condition.message),
        last_transition_time=condition.last_transition_time,
    )


def slim_health(health: nodehealth.NodeHealth) -> nodehealth.NodeHealth:
    meta, status = health.metadata, health.status
    return nodehealth.NodeHealth(
        metadata=Metadata(name=meta.name, uid=meta.uid, resource_version=meta.resource_version),
        spec=nodehealth.Spec(clear=health.spec.clear),
        status=nodehealth.Status(
            verdict=_intern(status.verdict),
            checks=tuple(_slim_check(check) for check in status.checks),
            boot_id=status.boot_id,
            observed_at=status.observed_at,
        ),
    )


# fleets have a few dozen checks: one object for all nodes on which a check has nothing to say
_silent: dict[tuple[str, str], nodehealth.CheckStatus] = {}
_SILENT_LIMIT = 1024


def _slim_check(check: nodehealth.CheckStatus) -> nodehealth.CheckStatus:
    if check.findings or check.cleared or check.more_findings:
        return msgspec.structs.replace(check, reason="", message="", last_change="")
    key = (check.name, check.verdict)
    known = _silent.get(key)
    if known is None:
        known = nodehealth.CheckStatus(name=check.name, verdict=check.verdict)
        if len(_silent) < _SILENT_LIMIT:
            _silent[key] = known
    return known

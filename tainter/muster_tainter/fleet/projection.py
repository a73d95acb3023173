"""The stored part of each Node and NodeHealth: a few kB, whatever the objects carry.

The reflectors use it as ``transform``. It keeps everything that a decision or a PATCH needs.
"""

import sys
from collections.abc import Set as AbstractSet
from functools import lru_cache

import msgspec

from muster_kube import nodehealth
from muster_kube.api.objects import ManagedNode, Metadata, Node, NodeCondition, NodeSpec, NodeStatus, OwnerReference
from muster_tainter.faults.desired_state import OUR_ANNOTATIONS, OUR_LABELS, READY
from muster_tainter.faults.messages import CONDITION
from muster_tainter.faults.record.check_history import ANNOTATION as TESTS
from muster_tainter.faults.record.verification_attempts import ANNOTATION as PROOFS

_intern = sys.intern


def slim_node(
    node: Node | ManagedNode,
    more_labels: AbstractSet[str] = frozenset(),
    more_conditions: AbstractSet[str] = frozenset(),
) -> Node:
    """``more_labels``, ``more_conditions``: further label keys and condition types that the policy uses."""
    meta = node.metadata
    keys = (*OUR_LABELS, *more_labels) if more_labels else OUR_LABELS
    return Node(
        metadata=Metadata(
            name=meta.name,
            uid=_intern(meta.uid),  # also in its NodeHealth
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            labels={_intern(key): _intern(meta.labels[key]) for key in keys if key in meta.labels},
            annotations={key: meta.annotations[key] for key in OUR_ANNOTATIONS if key in meta.annotations},
        ),
        spec=NodeSpec(taints=node.spec.taints, unschedulable=node.spec.unschedulable),
        status=NodeStatus(
            capacity=_shared_devices(node.status.capacity),
            allocatable=_shared_devices(node.status.allocatable),
            conditions=tuple(
                _slim_condition(c) if c.type == CONDITION or c.type in more_conditions else _ready(c)
                for c in node.status.conditions
                if c.type in (CONDITION, READY) or c.type in more_conditions
            ),
        ),
    )


# one object for all nodes of a shape
_devices: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
_DEVICES_LIMIT = 1024
_RESOURCES_LIMIT = 32  # of a node


def _shared_devices(resources: dict[str, str]) -> dict[str, str]:
    """What device plug-ins offer: resources with a domain in their names."""
    key = tuple(sorted((name, number) for name, number in resources.items() if "/" in name)[:_RESOURCES_LIMIT])
    known = _devices.get(key)
    if known is None:
        known = {_intern(name): _intern(number) for name, number in key}
        if len(_devices) < _DEVICES_LIMIT:
            _devices[key] = known
    return known


@lru_cache(maxsize=8)
def _of_status(status: str) -> NodeCondition:
    return NodeCondition(type=READY, status=status)


def _ready(condition: NodeCondition) -> NodeCondition:
    """The Ready condition, as one object for all nodes with the same status."""
    return _of_status(condition.status)


def _slim_condition(condition: NodeCondition) -> NodeCondition:
    return NodeCondition(
        type=_intern(condition.type),
        status=_intern(condition.status),
        reason=_intern(condition.reason),
        message=_intern(condition.message),
        last_transition_time=condition.last_transition_time,
    )


def slim_health(health: nodehealth.NodeHealth) -> nodehealth.NodeHealth:
    meta, status = health.metadata, health.status
    return nodehealth.NodeHealth(
        metadata=Metadata(
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=_intern(meta.creation_timestamp),
            annotations=_remembered(meta.annotations) if meta.annotations else _NONE,
            owner_references=tuple(_owner(owner) for owner in meta.owner_references if owner.kind == "Node"),
        ),
        spec=nodehealth.NodeHealthSpec(
            requests=health.spec.requests, clear=health.spec.clear, canary=_slim_canary(health.spec.canary)
        ),
        status=nodehealth.NodeHealthStatus(
            verdict=_intern(status.verdict),
            checks=tuple(_slim_check(check) for check in status.checks),
            boot_id=status.boot_id,
            agent=_HELD if status.agent.pod_uid else _FREE,
            idle_since=status.idle_since,
            due=_shared_due(status.due),
            answers=_keep_answers(health),
            canary=status.canary,
            observed_at=status.observed_at,
        ),
    )


def _owner(owner: OwnerReference) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="Node", name="", uid=_intern(owner.uid))


def _remembered(annotations: dict[str, str]) -> dict[str, str]:
    return {key: annotations[key] for key in (TESTS, PROOFS) if key in annotations} or _NONE


_NONE: dict[str, str] = {}
_NO_CANARY = nodehealth.CanaryRequest()


def _slim_canary(request: nodehealth.CanaryRequest) -> nodehealth.CanaryRequest:
    if request == _NO_CANARY:
        return _NO_CANARY
    return msgspec.structs.replace(request, by="", message="")


_FREE = nodehealth.AgentIdentity()
_HELD = nodehealth.AgentIdentity(pod_uid="held")  # the tainter only needs to know that there is one

# a fleet has few different lists
_due: dict[tuple[str, ...], tuple[str, ...]] = {}
_DUE_LIMIT = 4096


def _shared_due(due: tuple[str, ...]) -> tuple[str, ...]:
    if not due:
        return ()
    known = _due.get(due)
    if known is None:
        known = tuple(map(_intern, due))
        if len(_due) < _DUE_LIMIT:
            _due[known] = known
    return known


def _keep_answers(health: nodehealth.NodeHealth) -> tuple[nodehealth.RequestAnswer, ...]:
    """Answers to current requests: agents keep older ones."""
    if not health.spec.requests or not health.status.answers:
        return ()
    asked = {request.id for request in health.spec.requests}
    return tuple(msgspec.structs.replace(answer, message="") for answer in health.status.answers if answer.id in asked)


# one object for all nodes on which a check has nothing to report
_silent: dict[tuple[str, str], nodehealth.ReportedCheck] = {}
_SILENT_LIMIT = 1024


def _slim_check(check: nodehealth.ReportedCheck) -> nodehealth.ReportedCheck:
    if check.findings or check.cleared or check.more_findings:
        return msgspec.structs.replace(check, reason="", message="", last_change="")
    key = (check.name, check.verdict)
    known = _silent.get(key)
    if known is None:
        known = nodehealth.ReportedCheck(name=check.name, verdict=check.verdict)
        if len(_silent) < _SILENT_LIMIT:
            _silent[key] = known
    return known

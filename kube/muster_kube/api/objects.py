"""The fields of Kubernetes objects that Muster reads; decoding skips all others.

A projected Node needs a few kB instead of fifty, which matters for large fleets. Fields default to empty, because the
API omits empty ones. Strings that many objects share are stored once (:func:`intern_node`).
"""

import sys
from typing import Protocol

import msgspec


class Api(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True, gc=False):
    """Base of all types: camelCase in JSON, empty fields omitted. Frozen trees have no cycles, so the garbage collector
    does not track them, which also saves 16 bytes per object."""


class OwnerReference(Api, frozen=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(Api, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Object(Protocol):
    """Any object with metadata, which a reflector can store."""

    @property
    def metadata(self) -> Metadata: ...


class Taint(Api, frozen=True):
    """effect: NoSchedule, PreferNoSchedule or NoExecute. Its identity is (key, effect)."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeCondition(Api, frozen=True):
    """type is unique in its list; status: True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeSpec(Api, frozen=True):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeStatus(Api, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class Node(Api, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ManagedFields(Api, frozen=True):
    """Which manager owns which fields; ``fields`` is the raw ``fieldsV1`` tree."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str | None = None
    fields: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="fieldsV1")


class ManagedMetadata(Metadata, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class ManagedNode(Api, frozen=True):
    """A Node with its managedFields, which are half of its bytes. Use it for a single get, not for a cache."""

    metadata: ManagedMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerResources(Api, frozen=True):
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class Container(Api, frozen=True):
    name: str
    resources: ContainerResources = ContainerResources()


class PodSpec(Api, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()


class PodStatus(Api, frozen=True):
    phase: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.conditions)


class Pod(Api, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ObjectReference(Api, frozen=True):
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Api, frozen=True):
    component: str = ""
    host: str = ""


class EventMetadata(Api, frozen=True):
    """For a create: the server generates the name from generateName."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Event(Api, frozen=True, omit_defaults=False):
    """core/v1 Event. type: Normal or Warning; the server sets no default. Times: RFC 3339 UTC. Events of Nodes are in
    namespace ``default``."""

    metadata: EventMetadata
    involved_object: ObjectReference
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 1
    reporting_component: str = ""
    reporting_instance: str = ""


def _intern_values(values: dict[str, str]) -> dict[str, str]:
    return {sys.intern(key): sys.intern(value) if len(value) <= 64 else value for key, value in values.items()}


def _intern_condition(condition: NodeCondition) -> NodeCondition:
    """A condition without heartbeat times, which change every few minutes and which no component uses."""
    return NodeCondition(
        type=sys.intern(condition.type),
        status=sys.intern(condition.status),
        reason=sys.intern(condition.reason),
        message=sys.intern(condition.message),
        last_transition_time=condition.last_transition_time,
    )


_BULKY_ANNOTATION = 1024  # bytes; larger annotations hold the state of other programs


def intern_node(node: Node) -> Node:
    """``node`` with strings that many nodes share stored once. Use it as a Reflector's ``transform``.

    Drops heartbeat times, and annotations over 1 kB outside ``muster.dev/``.
    """
    meta = node.metadata
    return Node(
        metadata=Metadata(
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels=_intern_values(meta.labels),
            annotations={
                sys.intern(key): value
                for key, value in meta.annotations.items()
                if len(value) <= _BULKY_ANNOTATION or key.startswith("muster.dev/")
            },
            owner_references=meta.owner_references,
        ),
        spec=node.spec,
        status=NodeStatus(
            conditions=tuple(_intern_condition(c) for c in node.status.conditions),
            allocatable=_intern_values(node.status.allocatable),
        ),
    )

"""The few fields of Kubernetes objects that Muster reads; everything else is skipped while decoding.

A projected Node costs a few kB where the whole one costs fifty (the sizes that large fleets live or die by). Fields
default to empty, as the API omits empty ones. Strings that repeat over the fleet are kept once (:func:`intern_node`).
"""

import sys
from typing import Protocol

import msgspec


class Api(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True, gc=False):
    """Base of all: camelCase on the wire, empty fields omitted. Frozen trees hold no cycles: nothing for the collector
    to look at, and 16 bytes less for each."""


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
    """Anything with metadata: what the reflector can hold."""

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
    allocatable: dict[str, str] = {}


class Node(Api, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ManagedFields(Api, frozen=True):
    """Who wrote which fields last; ``fields`` is the raw ``fieldsV1`` tree."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str | None = None
    fields: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="fieldsV1")


class ManagedMetadata(Metadata, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class ManagedNode(Api, frozen=True):
    """A Node with its managedFields (half of its bytes): for a single get, never for a cache."""

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
    """For a create: the server makes the name from generateName."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Event(Api, frozen=True, omit_defaults=False):
    """core/v1 Event. type: Normal or Warning, which the server does not fill in; times RFC 3339 UTC. Events of Nodes
    live in namespace ``default``."""

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
    """Heartbeats change every few minutes and say nothing a part uses: left out of the cache."""
    return NodeCondition(
        type=sys.intern(condition.type),
        status=sys.intern(condition.status),
        reason=sys.intern(condition.reason),
        message=sys.intern(condition.message),
        last_transition_time=condition.last_transition_time,
    )


_BULKY_ANNOTATION = 1024  # bytes; larger ones are other programs' memory


def intern_node(node: Node) -> Node:
    """``node`` with strings that repeat over a fleet kept once: pass it as a Reflector's ``transform``.

    Annotations over 1 kB are dropped unless under ``muster.dev/``, heartbeat times always.
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

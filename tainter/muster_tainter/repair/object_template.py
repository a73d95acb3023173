"""Renders a policy's template to the object of one attempt: its name, our marks, and its path in the API."""

import re
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from pydantic import JsonValue

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Node
from muster_tainter.faults.record.node_record import REF_LIMIT, Fault
from muster_tainter.policy.repair import JOB_KEPT_S, LABEL, Remedy, fill_template, safe_values, variables
from muster_tainter.repair.repair_plan import attempt_id

# annotations of the created objects
REPAIR_OF = "muster.dev/repair-of"  # uid of the Node
NODE = "muster.dev/node"
ATTEMPT = "muster.dev/attempt"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PATH = re.compile(
    r"/(?:api|apis/[a-z0-9][a-z0-9.-]*)/v[a-z0-9]+(?:/namespaces/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?"
    r"/[a-z0-9]+/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
)
_JOBS = "/apis/batch/v1"


@dataclass(frozen=True)
class RenderedObject:
    """ref: its name in the Node's annotation; words: for messages; path, collection, body: of an object (empty: the
    Node itself is annotated, with ``annotations``)."""

    ref: str
    words: str
    path: str = ""
    collection: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class _Kind(msgspec.Struct, frozen=True):
    name: str
    kind: str = ""
    namespaced: bool = False


class _Kinds(msgspec.Struct, frozen=True):
    resources: tuple[_Kind, ...] = ()


class ObjectKinds:
    """Looks up the API path of a kind on the server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}

    async def collection(self, api_version: str, kind: str, namespace: str) -> str:
        """Raises ValueError if the server has no such kind, ApiError if the request fails."""
        known = self._known.get((api_version, kind))
        if known is None:
            base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                found = (await self._client.get(base, type=_Kinds)).resources
            except NotFound:
                found = ()
            each = next((each for each in found if each.kind == kind and "/" not in each.name), None)
            if each is None:
                raise ValueError(f"{kind} of {api_version}: the API server has no such kind: install its CRD")
            known = self._known[api_version, kind] = f"{base}/{{}}{each.name}", each.namespaced
        return known[0].format(f"namespaces/{namespace}/" if known[1] else "")


async def render_object(
    client: KubeClient,
    kinds: ObjectKinds,
    node: Node,
    fault: Fault,
    fault_class: str,
    remedy: Remedy,
    n: int,
    namespace: str,
) -> RenderedObject:
    """The object of attempt ``n``. namespace: default for templates without one. Raises ValueError if the values do not
    make a valid object; ApiError."""
    values = await _values(client, node, fault, fault_class, remedy, n)
    if remedy.annotate is not None:
        annotations = cast("dict[str, str]", fill_template({**remedy.annotate}, values))
        return RenderedObject("annotate " + " ".join(annotations), "by annotation", annotations=annotations)
    body = cast("dict[str, Any]", fill_template(remedy.template, values))
    metadata = body["metadata"] = {**body.get("metadata", {})}
    identity = attempt_id(node.metadata.uid, fault_class, fault, n)
    metadata.setdefault("name", f"muster-{fault_class}-{identity}")
    in_namespace = metadata.get("namespace", namespace)
    for key, value in (("name", metadata["name"]), ("namespace", in_namespace)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"metadata.{key}: {str(value)[:80]!r}: expected a DNS name")
    _mark(metadata, node, fault_class, identity)
    if remedy.job is not None:
        collection = f"{_JOBS}/namespaces/{in_namespace}/jobs"
        _complete_job(body, fault_class)
    else:
        collection = await kinds.collection(body["apiVersion"], body["kind"], in_namespace)
    if f"/namespaces/{in_namespace}/" in collection:
        metadata["namespace"] = in_namespace
    path = f"{collection}/{metadata['name']}"
    if len(path) > REF_LIMIT:
        raise ValueError(f"{path[:80]}…: expected at most {REF_LIMIT} characters")
    return RenderedObject(path, f"{body['kind']} {metadata['name']}", path, collection, body)


async def _values(
    client: KubeClient, node: Node, fault: Fault, fault_class: str, remedy: Remedy, n: int
) -> dict[str, str]:
    wanted = variables(remedy.template)
    known = {
        "node": node.metadata.name,
        "class": fault_class,
        "check": fault.check,
        "component": fault.component,
        "device": fault.component.partition("/")[2] or fault.component,
        "reason": fault.reason,
        "attempt": str(n),
    }
    meta = node.metadata
    if any(":" in name for name in wanted):  # only a few of the labels and annotations are stored
        meta = (await client.get(f"/api/v1/nodes/{meta.name}", type=Node)).metadata
    return safe_values(wanted, known, meta.labels, meta.annotations)


def _mark(metadata: dict[str, Any], node: Node, fault_class: str, identity: str) -> None:
    metadata["labels"] = {**metadata.get("labels", {}), LABEL: fault_class}
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        NODE: node.metadata.name,
        REPAIR_OF: node.metadata.uid,
        ATTEMPT: identity,
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    metadata.setdefault("ownerReferences", [owner])


def _complete_job(body: dict[str, Any], fault_class: str) -> None:
    body |= {"apiVersion": "batch/v1", "kind": "Job"}
    spec = body["spec"] = {"ttlSecondsAfterFinished": JOB_KEPT_S, **body["spec"]}
    template = spec["template"] = {**spec["template"]}
    meta = template["metadata"] = {**template.get("metadata", {})}
    # excludes the pod from the drain of its own node
    meta["labels"] = {**_mapping(meta.get("labels")), LABEL: fault_class}


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def annotations_of(made: RenderedObject) -> dict[str, str]:
    """The annotations that distinguish it from another attempt's object, and from objects of others."""
    return {key: made.body["metadata"]["annotations"][key] for key in (REPAIR_OF, ATTEMPT)}


def is_our_path(path: str) -> bool:
    """Whether it is the path of an object, and not another part of the API."""
    return _PATH.fullmatch(path) is not None and ".." not in path

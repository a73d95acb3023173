"""The API server of IPUJobs as a value, with what Kubernetes does to their pods: binding, start, end, removal.

Versions count within each kind, and uids are made of the name: two orders of independent writes lead to one state. Time
stands still, so nothing in an object tells when it was written.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from tests.explore.api_server import Answer, Json, Request, failure, merged

JOBS = "/apis/graphcore.ai/v1alpha1/ipujobs"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
SMALL = ("configmaps", "serviceaccounts", "roles", "rolebindings")
MUSTER = "muster"  # namespace of the tracker
TRACKER = f"/api/v1/namespaces/{MUSTER}/configmaps"
NOON = "2027-01-15T08:00:00Z"
FAULTY = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str


class Change(NamedTuple):
    """An event of every watch that shows the object."""

    key: Key
    line: bytes


class Cluster(NamedTuple):
    """objects: (key, JSON), sorted. versions: by kind, the last one; made: how often each pod's name was used."""

    objects: tuple[tuple[Key, bytes], ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    made: tuple[tuple[Key, int], ...] = ()

    def raw(self, key: Key) -> bytes | None:
        return next((raw for each, raw in self.objects if each == key), None)

    def get(self, key: Key) -> Json | None:
        return None if (raw := self.raw(key)) is None else msgspec.json.decode(raw)

    def of(self, kind: str) -> list[tuple[Key, Json]]:
        return [(key, decoded(raw)) for key, raw in self.objects if key.kind == kind]

    def version(self, kind: str) -> int:
        return dict(self.versions).get(kind, 0)


Written = tuple[Cluster, Answer, tuple[Change, ...]]


@lru_cache(maxsize=1 << 14)
def decoded(raw: bytes) -> Json:
    """Shared: not to be changed."""
    found: Json = msgspec.json.decode(raw)
    return found


def key_of(path: str) -> tuple[Key, str]:
    """An empty name: a collection. The second: the subresource."""
    parts = path.strip("/").split("/")
    rest = parts[2 if parts[0] == "api" else 3 :]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind, name, sub, *_ = [*rest, "", ""]
    return Key(kind, namespace, name), sub


def shows(path: str, key: Key) -> bool:
    """Whether a list or watch at ``path`` has the object. Objects of jobs and the tracker never share a namespace."""
    asked, _ = key_of(path)
    if asked.kind != key.kind:
        return False
    return asked.namespace == key.namespace if asked.namespace else key.namespace != MUSTER


@lru_cache(maxsize=1 << 15)
def execute(cluster: Cluster, request: Request) -> Written:
    key, sub = key_of(request.path)
    if request.method == "GET" and not key.name:
        items = [msgspec.Raw(raw) for each, raw in cluster.objects if shows(request.path, each)]
        page = {"metadata": {"resourceVersion": str(cluster.version(key.kind))}, "items": items}
        return cluster, Answer(200, msgspec.json.encode(page)), ()
    body: Json = msgspec.json.decode(request.body) if request.body else {}
    if request.method == "POST":
        return create(cluster, Key(key.kind, key.namespace, body["metadata"]["name"]), body)
    old = cluster.get(key)
    if old is None:
        return cluster, failure(404, "NotFound"), ()
    if request.method == "GET":
        return cluster, Answer(200, cluster.raw(key) or b""), ()
    wanted = (body.get("preconditions") if request.method == "DELETE" else body.get("metadata")) or {}
    if any(wanted.get(each) not in (None, old["metadata"][each]) for each in ("uid", "resourceVersion")):
        return cluster, failure(409, "Conflict"), ()
    if request.method == "DELETE":
        return delete(cluster, key, at_once=body.get("gracePeriodSeconds") == 0)
    change = {sub: body.get(sub, {})} if sub else {name: each for name, each in body.items() if name != "status"}
    change.get("metadata", {}).pop("resourceVersion", None)
    return update(cluster, key, change)


def create(cluster: Cluster, key: Key, body: Json) -> Written:
    if cluster.raw(key) is not None:
        return cluster, failure(409, "AlreadyExists"), ()
    counts = dict(cluster.made)
    counts[key] = counts.get(key, 0) + 1
    metadata = {"namespace": key.namespace, "uid": f"{key.name}.{counts[key]}", "generation": 1,
                "creationTimestamp": NOON, **body["metadata"]}  # fmt: skip
    more = {"status": {"phase": "Pending"}} if key.kind == "pods" else {}
    made = cluster._replace(made=tuple(sorted(counts.items())))
    return _store(made, key, {**body, **more, "metadata": metadata}, "ADDED")


def update(cluster: Cluster, key: Key, change: Json) -> Written:
    """A merge patch."""
    old = cluster.get(key)
    assert old is not None, key
    new: Json = merged(old, change)
    if new == old:
        return cluster, Answer(200, cluster.raw(key) or b""), ()
    if new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
    waited = old["metadata"].get("finalizers") and not new["metadata"].get("finalizers")
    if waited and new["metadata"].get("deletionTimestamp"):
        return remove(cluster, key)
    return _store(cluster, key, new, "MODIFIED")


def delete(cluster: Cluster, key: Key, *, at_once: bool = False) -> Written:
    """A job waits for its finalizer, a pod that has begun for its kubelet."""
    old = cluster.get(key)
    assert old is not None, key
    bound = key.kind == "pods" and old["spec"].get("nodeName") and not at_once
    if not bound and not old["metadata"].get("finalizers"):
        return remove(cluster, key)
    return update(cluster, key, {"metadata": {"deletionTimestamp": NOON}})


def remove(cluster: Cluster, key: Key) -> Written:
    body = cluster.get(key)
    assert body is not None, key
    version = cluster.version(key.kind) + 1
    body["metadata"]["resourceVersion"] = str(version)
    raw = msgspec.json.encode(body)
    versions = {**dict(cluster.versions), key.kind: version}
    left = cluster._replace(
        objects=tuple(each for each in cluster.objects if each[0] != key), versions=tuple(sorted(versions.items()))
    )
    return left, Answer(200, raw), (Change(key, b'{"type":"DELETED","object":%s}' % raw),)


def _store(cluster: Cluster, key: Key, body: Json, kind: str) -> Written:
    version = cluster.version(key.kind) + 1
    body["metadata"]["resourceVersion"] = str(version)
    raw = msgspec.json.encode(body)
    objects, versions = {**dict(cluster.objects), key: raw}, {**dict(cluster.versions), key.kind: version}
    after = cluster._replace(objects=tuple(sorted(objects.items())), versions=tuple(sorted(versions.items())))
    line = b'{"type":"%s","object":%s}' % (kind.encode(), raw)
    return after, Answer(201 if kind == "ADDED" else 200, raw), (Change(key, line),)


# what else is in a cluster


def make_node(name: str) -> Json:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"rack": "one"}}, "spec": {}, "status": status}


def is_faulty(node: Json) -> bool:
    return FAULTY in node["spec"].get("taints", [])


def may_run(pod: Json, node: Json) -> bool:
    """What the scheduler and the node's taint say: tolerations and required labels, as far as jobs use them."""
    spec: Json = pod["spec"]
    labels: dict[str, str] = node["metadata"].get("labels", {})
    if is_faulty(node) and not any(_tolerates(each) for each in spec.get("tolerations", [])):
        return False
    if any(labels.get(name) != value for name, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms", [{}])
    return any(all(_matches(each, labels) for each in term.get("matchExpressions", [])) for term in terms)


def _tolerates(toleration: Json) -> bool:
    return toleration.get("key") in (None, FAULTY["key"]) and toleration.get("effect") in (None, FAULTY["effect"])


def _matches(expression: Any, labels: dict[str, str]) -> bool:
    has = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return has in expression["values"]
        case "NotIn":
            return has not in expression["values"]
        case "Exists":
            return has is not None
        case "DoesNotExist":
            return has is None
    raise ValueError(expression)

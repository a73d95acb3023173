"""An API server as a value: objects by path, one revision, and what each request does to it.

It does what Muster relies on: merge patches with resourceVersions, the status subresource, managedFields of a Node's
taints, create, list, and the events that watches of a collection deliver. A request that changes nothing makes no
revision. Pure, so that an explored world can try every request in every state.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]

NODES = "/api/v1/nodes"
NODEHEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"


class Request(NamedTuple):
    """params: sorted pairs. by: who sent it; names the field manager where none is given."""

    method: str
    path: str
    body: bytes = b""
    params: tuple[tuple[str, str], ...] = ()
    by: str = ""

    @property
    def writes(self) -> bool:
        return self.method != "GET"


class Answer(NamedTuple):
    status: int
    body: bytes


class Event(NamedTuple):
    """What a watch of ``collection`` delivers: one line. name: of the object."""

    collection: str
    name: str
    line: bytes


class ApiServer(NamedTuple):
    """objects: (path, JSON) sorted by path; each JSON has its resourceVersion."""

    revision: int
    objects: tuple[tuple[str, bytes], ...]

    def get(self, path: str) -> Json | None:
        raw = self.raw(path)
        return None if raw is None else msgspec.json.decode(raw)

    def raw(self, path: str) -> bytes | None:
        return next((raw for at, raw in self.objects if at == path), None)

    def names(self, collection: str) -> list[str]:
        return [path.removeprefix(f"{collection}/") for path, _ in self.objects if path.startswith(f"{collection}/")]


def make_server(objects: dict[str, Json]) -> ApiServer:
    """With these objects by path, each with a version of its own."""
    stored = []
    for number, (path, body) in enumerate(sorted(objects.items()), start=1):
        body.setdefault("metadata", {})["resourceVersion"] = str(number)
        stored.append((path, msgspec.json.encode(body)))
    return ApiServer(len(stored), tuple(stored))


def split(path: str) -> tuple[str, str, str]:
    """(collection, name, subresource) of an object's path."""
    for sub in ("/status", "/scale"):
        if path.endswith(sub):
            return (*path.removesuffix(sub).rsplit("/", 1), sub[1:])  # type: ignore[return-value]
    return (*path.rsplit("/", 1), "")  # type: ignore[return-value]


@lru_cache(maxsize=1 << 16)
def execute(server: ApiServer, request: Request) -> tuple[ApiServer, Answer, tuple[Event, ...]]:
    """What the server answers, and the server afterwards."""
    if request.method == "GET":
        return server, _read(server, request), ()
    if request.method == "POST":
        return _create(server, request)
    if request.method == "PATCH":
        return _patch(server, request)
    if request.method == "DELETE":
        return _delete(server, request)
    return server, failure(405, "MethodNotAllowed"), ()


def failure(status: int, reason: str) -> Answer:
    body = {"kind": "Status", "code": status, "reason": reason, "message": reason}
    return Answer(status, msgspec.json.encode(body))


def _read(server: ApiServer, request: Request) -> Answer:
    raw = server.raw(request.path)
    if raw is not None:
        return Answer(200, raw)
    if request.path.rsplit("/", 1)[-1] not in COLLECTIONS:
        return failure(404, "NotFound")
    params = dict(request.params)
    selector, label = params.get("fieldSelector", ""), params.get("labelSelector", "")
    wanted = selector.removeprefix("metadata.name=")
    found = [(name, server.raw(f"{request.path}/{name}") or b"") for name in server.names(request.path)]
    items = [
        msgspec.Raw(raw)
        for name, raw in found
        if (not selector or name == wanted) and (not label or _has_label(raw, label))
    ]
    page = {"metadata": {"resourceVersion": str(server.revision)}, "items": items}
    return Answer(200, msgspec.json.encode(page))


def _has_label(raw: bytes, selector: str) -> bool:
    key, _, value = selector.partition("=")
    labels: dict[str, str] = msgspec.json.decode(raw)["metadata"].get("labels", {})
    return labels.get(key) == value


COLLECTIONS = {"nodes", "nodehealths", "ipujobs", "pods", "configmaps", "leases"}


def _create(server: ApiServer, request: Request) -> tuple[ApiServer, Answer, tuple[Event, ...]]:
    body: Json = msgspec.json.decode(request.body)
    path = f"{request.path}/{body['metadata']['name']}"
    if server.raw(path) is not None:
        return server, failure(409, "AlreadyExists"), ()
    body["metadata"].setdefault("uid", f"uid-{server.revision + 1}")
    return store(server, path, body, "ADDED")


def _patch(server: ApiServer, request: Request) -> tuple[ApiServer, Answer, tuple[Event, ...]]:
    collection, name, sub = split(request.path)
    path = f"{collection}/{name}"
    old = server.get(path)
    if old is None:
        return server, failure(404, "NotFound"), ()
    change: Json = msgspec.json.decode(request.body)
    version = change.get("metadata", {}).pop("resourceVersion", None)
    if version not in (None, old["metadata"]["resourceVersion"]):
        return server, failure(409, "Conflict"), ()
    if sub:
        change = {sub: change.get(sub, {})}
    elif collection.endswith(SUBRESOURCED):
        change.pop("status", None)
    new = merged(old, change)
    if new == old:
        return server, Answer(200, server.raw(path) or b""), ()
    if collection == NODES:
        manager = dict(request.params).get("fieldManager", request.by)
        _note_manager(old, new, manager)
    return store(server, path, new, "MODIFIED")


SUBRESOURCED = ("/nodes", "/nodehealths", "/ipujobs")


def _delete(server: ApiServer, request: Request) -> tuple[ApiServer, Answer, tuple[Event, ...]]:
    old = server.get(request.path)
    if old is None:
        return server, failure(404, "NotFound"), ()
    revision = server.revision + 1
    old["metadata"]["resourceVersion"] = str(revision)
    left = ApiServer(revision, tuple(each for each in server.objects if each[0] != request.path))
    return left, Answer(200, msgspec.json.encode(old)), (_event("DELETED", request.path, msgspec.json.encode(old)),)


def store(server: ApiServer, path: str, body: Json, kind: str) -> tuple[ApiServer, Answer, tuple[Event, ...]]:
    """Write the object at ``path`` as it is, with the next revision."""
    revision = server.revision + 1
    body["metadata"]["resourceVersion"] = str(revision)
    raw = msgspec.json.encode(body)
    objects = {**dict(server.objects), path: raw}
    after = ApiServer(revision, tuple(sorted(objects.items())))
    return after, Answer(201 if kind == "ADDED" else 200, raw), (_event(kind, path, raw),)


def edit(server: ApiServer, path: str, change: Callable[[Json], None], by: str) -> tuple[ApiServer, tuple[Event, ...]]:
    """An edit by somebody who is not explored: ``change`` gets the object and alters it."""
    old, new = server.get(path), server.get(path)
    if old is None or new is None:
        raise KeyError(path)
    change(new)
    if new == old:
        return server, ()
    if path.startswith(NODES):
        _note_manager(old, new, by)
    after, _, events = store(server, path, new, "MODIFIED")
    return after, events


def _note_manager(old: Json, new: Json, manager: str) -> None:
    """The list of taints has one manager: who wrote it last; an empty list has none (measured on 1.20)."""
    before, after = old.get("spec", {}).get("taints"), new.get("spec", {}).get("taints")
    if before == after:
        return
    fields: Json = {"f:spec": {"f:taints": {}}}
    new["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}] if after else []


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def only(server: ApiServer, collection: str) -> ApiServer:
    """The server as a list of ``collection`` shows it."""
    return ApiServer(server.revision, tuple(each for each in server.objects if each[0].startswith(f"{collection}/")))


def events_between(before: ApiServer, after: ApiServer, collection: str) -> tuple[Event, ...]:
    """What a watch of ``collection`` that begins at ``before`` delivers until ``after``, if each object has changed at
    most once in between."""
    old, new = dict(only(before, collection).objects), dict(only(after, collection).objects)
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    found = []
    for path in changed:
        raw = new.get(path)
        if raw is None:
            body = msgspec.json.decode(old[path])
            body["metadata"]["resourceVersion"] = str(after.revision)
            found.append(_event("DELETED", path, msgspec.json.encode(body)))
        else:
            found.append(_event("MODIFIED" if path in old else "ADDED", path, raw))
    return tuple(found)


def _event(kind: str, path: str, raw: bytes) -> Event:
    collection, name = path.rsplit("/", 1)
    return Event(collection, name, b'{"type":"%s","object":%s}' % (kind.encode(), raw))


GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}'

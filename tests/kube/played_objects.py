"""What an API server keeps for a webhook's certificate: objects by path, with versions and watches, in memory."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from muster_kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from muster_kube.api.list_decoder import ListPage
from muster_kube.webhook.certificate_secret import validating_webhook_path

SECRET = "/api/v1/namespaces/muster/secrets/own-node"
CONFIGURATION = validating_webhook_path("own-node")


async def nothing() -> None:
    pass


class Cluster:
    """Objects with a resourceVersion each, as the API server keeps them; in the place of a KubeClient.

    meanwhile: what happens before each call. refuse: what calls of these methods and paths raise; LIST and WATCH are
    of the one object that they select.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.writes: list[tuple[str, str]] = []
        self.refuse: dict[tuple[str, str], ApiError] = {}
        self.meanwhile: Callable[[], Awaitable[object]] = nothing
        self._version = 0
        self._events: list[tuple[int, str, bytes]] = []
        self._told = asyncio.Event()
        self._cuts = 0

    def configure(self, *names: str, path: str = CONFIGURATION) -> None:
        self._keep(path, {"webhooks": [{"name": name, "clientConfig": {}} for name in names]})

    def inject(self, bundle: bytes, manager: str) -> None:
        """Somebody's caBundle, as cert-manager's cainjector writes it."""
        found = self.objects[CONFIGURATION]
        config = {"caBundle": base64.b64encode(bundle).decode()}
        webhooks = [each | {"clientConfig": config} for each in found["webhooks"]]
        owned = {f'k:{{"name":"{each["name"]}"}}': {"f:clientConfig": {"f:caBundle": {}}} for each in webhooks}
        entries = [
            {"manager": "helm", "operation": "Update", "fieldsV1": {"f:webhooks": {".": {}}}},
            {"manager": manager, "operation": "Update", "fieldsV1": {"f:webhooks": owned}},
        ]
        self._keep(CONFIGURATION, {"webhooks": webhooks}, managed=entries)

    @property
    def bundle(self) -> bytes:
        found = {each["clientConfig"].get("caBundle", "") for each in self.objects[CONFIGURATION]["webhooks"]}
        (only,) = found
        return base64.b64decode(only)

    def secret(self) -> dict[str, bytes]:
        return {name: base64.b64decode(value) for name, value in self.objects[SECRET]["data"].items()}

    def put(self, data: dict[str, bytes]) -> None:
        self._keep(SECRET, {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}})

    def remove(self, path: str) -> None:
        self._version += 1
        found = self.objects.pop(path)
        self._tell("DELETED", path, found | {"metadata": found["metadata"] | {"resourceVersion": str(self._version)}})

    def cut(self) -> None:
        """All watches that are open."""
        self._cuts += 1
        self._wake()

    def _keep(self, path: str, found: dict[str, Any], managed: Sequence[dict[str, Any]] = ()) -> None:
        self._version += 1
        name = path.rpartition("/")[2]
        kind = "MODIFIED" if path in self.objects else "ADDED"
        metadata = {"name": name, "resourceVersion": str(self._version), "managedFields": list(managed)}
        self.objects[path] = found | {"metadata": metadata}
        self._tell(kind, path, self.objects[path])

    def _tell(self, kind: str, path: str, found: dict[str, Any]) -> None:
        self._events.append((self._version, path, json.dumps({"type": kind, "object": found}).encode()))
        self._wake()

    def _wake(self) -> None:
        self._told.set()
        self._told = asyncio.Event()

    async def _others(self, method: str, path: str) -> None:
        await self.meanwhile()
        self.asked.append((method, path))
        if error := self.refuse.get((method, path)):
            raise error

    async def get(self, path: str, *, type: type[Any], **_: Any) -> Any:
        await self._others("GET", path)
        if path not in self.objects:
            raise NotFound(404, "NotFound", "no such object", path)
        return _decoded(self.objects[path], type)

    async def list_pages(
        self, path: str, type: type[Any], *, params: dict[str, Any], **_: Any
    ) -> AsyncIterator[ListPage[Any]]:
        path = _selected(path, params)
        await self._others("LIST", path)
        items = [_decoded(self.objects[path], type)] if path in self.objects else []
        yield ListPage(items, str(self._version))

    @asynccontextmanager
    async def watch(self, path: str, params: dict[str, Any], **_: Any) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        path = _selected(path, params)
        await self._others("WATCH", path)
        yield self._watched(path, int(params["resourceVersion"]))

    async def _watched(self, path: str, since: int) -> AsyncIterator[list[bytes]]:
        cuts = self._cuts
        while True:
            told = self._told
            if self._cuts != cuts:
                raise Unreachable("cut", path)
            lines = [line for version, of, line in self._events if version > since and of == path]
            since = self._version
            if lines:
                yield lines
            else:
                await told.wait()

    async def create(self, path: str, body: dict[str, Any], *, type: type[Any], **_: Any) -> Any:
        await self._others("POST", path)
        path = f"{path}/{body['metadata']['name']}"
        if path in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "it is there", path)
        self.writes.append(("POST", path))
        self._keep(path, {key: body[key] for key in ("type", "data")})
        return _decoded(self.objects[path], type)

    async def patch(self, path: str, body: dict[str, Any], *, type: type[Any], **_: Any) -> Any:
        await self._others("PATCH", path)
        found = self.objects.get(path)
        if found is None:
            raise NotFound(404, "NotFound", "no such object", path)
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it has changed", path)
        self.writes.append(("PATCH", path))
        data = found.get("data", {}) | body.get("data", {})
        self._keep(
            path,
            found
            | ({"data": {name: value for name, value in data.items() if value is not None}} if data else {})
            | ({"webhooks": body["webhooks"]} if "webhooks" in body else {}),
        )
        return _decoded(self.objects[path], type)


def _decoded(found: dict[str, Any], kind: type[Any]) -> Any:
    return msgspec.json.decode(json.dumps(found), type=kind)


def _selected(path: str, params: dict[str, Any]) -> str:
    field, _, name = params["fieldSelector"].partition("=")
    assert field == "metadata.name"
    return f"{path}/{name}"

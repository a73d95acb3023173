"""Reads, creates, patches and watches the tracker's ConfigMap, without interpreting its data."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Api, Metadata
from muster_kube.controller.reflector import Reflector

log = logging.getLogger(__name__)

FIELD_MANAGER = "muster-vipu-proxy"
_LABELS = {"app.kubernetes.io/managed-by": "muster-vipu-proxy"}


class TrackerObject(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class ConfigMapClient(Protocol):
    """The methods of KubeClient that the tracker uses."""

    async def get(self, path: str, *, type: type[TrackerObject]) -> TrackerObject: ...

    async def create(self, path: str, body: object, *, type: type[TrackerObject]) -> TrackerObject: ...

    async def patch(
        self, path: str, body: object, *, type: type[TrackerObject], params: dict[str, str]
    ) -> TrackerObject: ...


class TrackerConfigMap:
    """Every call raises ApiError and ConfigError."""

    def __init__(self, client: ConfigMapClient, namespace: str, name: str) -> None:
        self._client = client
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._path = f"{self._collection}/{name}"
        self.namespace = namespace
        self.name = name

    async def read(self) -> TrackerObject:
        """Raises NotFound."""
        return await self._client.get(self._path, type=TrackerObject)

    async def create(self, data: Mapping[str, str]) -> TrackerObject:
        """Raises AlreadyExists."""
        body = {"metadata": {"name": self.name, "labels": _LABELS}, "data": data}
        created = await self._client.create(self._collection, body, type=TrackerObject)
        log.info("created tracker ConfigMap %s/%s", self.namespace, self.name)
        return created

    async def patch(self, version: str, changes: Mapping[str, str | None]) -> TrackerObject:
        """changes: by key; None removes it. Raises Conflict if the resourceVersion is no longer ``version``."""
        body = {"metadata": {"resourceVersion": version}, "data": changes}
        return await self._client.patch(self._path, body, type=TrackerObject, params={"fieldManager": FIELD_MANAGER})

    async def watch(self, client: KubeClient, on_change: Callable[[TrackerObject | None], None]) -> None:
        """Runs until cancelled. client: connections of the watch; on_change: called with None if the ConfigMap is
        deleted."""
        await Reflector(
            client,
            self._collection,
            TrackerObject,
            on_change=lambda _key, _old, new: on_change(new),
            params={"fieldSelector": f"metadata.name={self.name}"},
        ).run()

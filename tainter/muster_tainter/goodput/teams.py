"""The team of each namespace: the value of a label that the policy names, or the namespace itself.

Only people who may edit namespaces can change that label; tenants usually may not.
"""

import asyncio

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata
from muster_kube.controller.reflector import Reflector

PATH = "/api/v1/namespaces"
NO_TEAM = "none"  # of a namespace without the label


class Namespace(msgspec.Struct, frozen=True):
    metadata: Metadata


class Teams:
    """label: None: each namespace is a team, and namespaces are not watched."""

    def __init__(self, client: KubeClient, label: str | None) -> None:
        self._label = label
        self._namespaces: Reflector[Namespace] | None = None
        if label is not None:
            self._namespaces = Reflector(client, PATH, Namespace, on_change=lambda *_: None, transform=self._slim)

    def of(self, namespace: str) -> str:
        if self._namespaces is None or self._label is None:
            return namespace
        found = self._namespaces.store.get(namespace)
        return (found.metadata.labels.get(self._label) if found is not None else "") or NO_TEAM

    async def run(self) -> None:
        """Runs until cancelled."""
        if self._namespaces is None:
            await asyncio.Event().wait()
        else:
            await self._namespaces.run()

    async def wait_known(self) -> None:
        if self._namespaces is not None:
            await self._namespaces.wait_synced()

    def _slim(self, found: Namespace) -> Namespace:
        meta = found.metadata
        assert self._label is not None  # noqa: S101 - only then is there a watch
        labels = {self._label: meta.labels[self._label]} if self._label in meta.labels else {}
        return Namespace(Metadata(name=meta.name, resource_version=meta.resource_version, labels=labels))

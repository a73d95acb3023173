"""Writes requests into NodeHealths and deletes them, without changing the entries of other requesters.

A request is a server-side apply; every requester has its own field manager. To delete the last entry, the whole list is
deleted instead: Kubernetes 1.20 leaves null for an applied list that has become empty, and then rejects that. Each
write names the resourceVersion on which it is based, so it can neither recreate a deleted object nor undo a request of
another leader.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.nodehealth import CheckRequest, ClearEntry, NodeHealth


@dataclass(frozen=True)
class Requester:
    """One requester. manager: its field manager. label: set on a NodeHealth while it has a request of this requester,
    so that a new leader finds it. is_ours: whether a request belongs to this requester. annotation: in which the
    requester stores state on the NodeHealth; empty: none."""

    manager: str
    label: str
    is_ours: Callable[[CheckRequest], bool]
    annotation: str = ""


class RequestWriter:
    """The writes of one requester. observe: receives the object that a write returned. All methods raise ApiError, and
    Conflict if ``health`` is outdated."""

    def __init__(self, client: KubeClient, asker: Requester, observe: Callable[[NodeHealth], None]) -> None:
        self._client = client
        self._asker = asker
        self._observe = observe

    async def ask(self, health: NodeHealth, requests: Collection[CheckRequest], label: str = "true") -> None:
        """Replace all our requests by ``requests``."""
        past = health.metadata.annotations.get(self._asker.annotation, "")
        self._observe(await self._apply(health, self._apply_body(health, past, requests, label)))

    async def delete(
        self,
        health: NodeHealth,
        past: str = "",
        *,
        keep: Collection[CheckRequest] = (),
        clear: Collection[ClearEntry] | None = None,
    ) -> None:
        """Delete our requests except ``keep``, and store ``past`` (empty: nothing) in the same write. clear: the new
        spec.clear; None: unchanged."""
        asker = self._asker
        kept = {request.id for request in keep}
        forgotten = not past and asker.annotation in health.metadata.annotations
        if self._remaining(health, kept) and clear is None and not forgotten:
            answer = await self._apply(health, self._apply_body(health, past, keep))
            if not any(asker.is_ours(request) and request.id not in kept for request in answer.spec.requests):
                self._observe(answer)
                return
            # another manager owns the entry too: observed for objects that were created with an empty spec
            health = answer
        self._observe(await self._patch(health, self._patch_body(health, past, self._remaining(health, kept), clear)))

    def _remaining(self, health: NodeHealth, kept: Collection[str]) -> list[CheckRequest]:
        return [each for each in health.spec.requests if each.id in kept or not self._asker.is_ours(each)]

    async def _apply(self, health: NodeHealth, body: dict[str, Any]) -> NodeHealth:
        manager = self._asker.manager
        return await self._client.apply(_path(health), body, field_manager=manager, force=True, type=NodeHealth)

    async def _patch(self, health: NodeHealth, body: dict[str, Any]) -> NodeHealth:
        params = {"fieldManager": self._asker.manager}
        return await self._client.patch(_path(health), body, type=NodeHealth, params=params)

    def _apply_body(
        self, health: NodeHealth, past: str, requests: Collection[CheckRequest], label: str = "true"
    ) -> dict[str, Any]:
        """All our fields of the object. The uid prevents an apply from recreating a deleted object."""
        meta = health.metadata
        metadata: dict[str, Any] = {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}
        if past:
            metadata["annotations"] = {self._asker.annotation: past}
        body = {"apiVersion": f"{nodehealth.GROUP}/{nodehealth.VERSION}", "kind": "NodeHealth", "metadata": metadata}
        if requests:
            metadata["labels"] = {self._asker.label: label}
            body["spec"] = {"requests": msgspec.to_builtins(list(requests))}
        return body

    def _patch_body(
        self, health: NodeHealth, past: str, left: list[CheckRequest], clear: Collection[ClearEntry] | None
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"resourceVersion": health.metadata.resource_version}
        if self._asker.annotation:
            metadata["annotations"] = {self._asker.annotation: past or None}
        if not any(map(self._asker.is_ours, left)):
            metadata["labels"] = {self._asker.label: None}
        spec: dict[str, Any] = {"requests": msgspec.to_builtins(left) or None}
        if clear is not None:
            spec["clear"] = msgspec.to_builtins(list(clear))
        return {"metadata": metadata, "spec": spec}


def _path(health: NodeHealth) -> str:
    return f"{nodehealth.PATH}/{health.metadata.name}"

"""Writes the plan's requests into NodeHealths, and deletes them again: nobody else's entry changes.

Asking is a server-side apply with a field manager of its own, as every requester's. Where ours is the last entry the
list goes as a whole instead: an API server of Kubernetes 1.20 leaves an applied list that has become empty as null,
and then refuses that. Each write is bound to the version it was decided on, so it can neither bring a deleted object
back nor undo what another leader has asked.
"""

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from muster_kube import nodehealth
from muster_kube.client import KubeClient
from muster_kube.nodehealth import NodeHealth, Request
from muster_tainter.past import ANNOTATION, MANAGER, TESTING_LABEL, PastTests, encode, is_ours
from muster_tainter.plan import request_for

_PARAMS = {"fieldManager": MANAGER}


class Requester:
    """observe: takes in what a write returned. unique: makes no text twice."""

    def __init__(
        self,
        client: KubeClient,
        observe: Callable[[NodeHealth], None],
        *,
        unique: Callable[[], str] = lambda: secrets.token_hex(5),
    ) -> None:
        self._client = client
        self._observe = observe
        self._unique = unique

    def make(self, check: str, now: float) -> Request:
        return request_for(check, self._unique(), now)

    async def ask(self, health: NodeHealth, request: Request) -> None:
        """Raises ApiError; Conflict where ``health`` is no longer what the server has."""
        body = _applied(health, health.metadata.annotations.get(ANNOTATION, ""), request)
        self._observe(await self._apply(health, body))

    async def delete(self, health: NodeHealth, past: PastTests) -> None:
        """All requests of ours, remembering ``past`` in the same write. Raises ApiError."""
        text = encode(past)
        others = [request for request in health.spec.requests if not is_ours(request)]
        if others:
            answer = await self._apply(health, _applied(health, text))
            if not any(is_ours(request) for request in answer.spec.requests):
                self._observe(answer)
                return
            # somebody else's manager owns the entry as well: seen where an object was created with an empty spec
            health = answer
            others = [request for request in health.spec.requests if not is_ours(request)]
        self._observe(await self._patch(health, _without(health, text, others)))

    async def _apply(self, health: NodeHealth, body: dict[str, Any]) -> NodeHealth:
        return await self._client.apply(_path(health), body, field_manager=MANAGER, force=True, type=NodeHealth)

    async def _patch(self, health: NodeHealth, body: dict[str, Any]) -> NodeHealth:
        return await self._client.patch(_path(health), body, type=NodeHealth, params=_PARAMS)


def _path(health: NodeHealth) -> str:
    return f"{nodehealth.PATH}/{health.metadata.name}"


def _applied(health: NodeHealth, past: str, request: Request | None = None) -> dict[str, Any]:
    """All that is ours in the object. The uid keeps an apply from making an object that is gone."""
    meta = health.metadata
    metadata: dict[str, Any] = {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}
    if past:
        metadata["annotations"] = {ANNOTATION: past}
    body = {"apiVersion": f"{nodehealth.GROUP}/{nodehealth.VERSION}", "kind": "NodeHealth", "metadata": metadata}
    if request is not None:
        metadata["labels"] = {TESTING_LABEL: request.checks[0]}
        body["spec"] = {"requests": [msgspec.to_builtins(request)]}
    return body


def _without(health: NodeHealth, past: str, others: list[Request]) -> dict[str, Any]:
    metadata = {
        "resourceVersion": health.metadata.resource_version,
        "labels": {TESTING_LABEL: None},
        "annotations": {ANNOTATION: past},
    }
    return {"metadata": metadata, "spec": {"requests": msgspec.to_builtins(others) or None}}

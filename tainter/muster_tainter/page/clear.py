"""POST /api/clear {node, check?, component?}: clears faults from the fleet page.

The caller needs permission to patch that NodeHealth, which the API server confirms. The entry is written in the
caller's name as ``muster clear`` writes it; the leading tainter then closes the faults. Any replica accepts the call.
"""

import logging
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Node
from muster_kube.api.reviews import Identity, Reviews
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CLEAR_LIMIT, GROUP, PATH, PLURAL, ClearEntry, NodeHealth
from muster_tainter.faults.manual_clear import clear_entries, merge_clears
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.http.volume_trials import HttpRefusal, unauthorized

log = logging.getLogger(__name__)

TRIES = 5  # repeated when another writer changes the NodeHealth between reading and writing


class ClearRequest(BaseModel):
    """check, component: None means all."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    node: str = Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    check: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="check whose findings are cleared; default: all checks"
    )
    component: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, description="component whose findings are cleared, e.g. gpu/0000:3b:00.0; default: all components"
    )


class ClearAnswer(msgspec.Struct, frozen=True):
    """by: the token's user; cleared: the written entries; late: number of entries without room, for another call."""

    by: str
    cleared: tuple[ClearEntry, ...]
    late: int


class ClearHandler:
    """client: writes NodeHealths with the tainter's permissions. now: seconds since the epoch."""

    def __init__(self, client: KubeClient, reviews: Reviews, *, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._reviews = reviews
        self._now = now

    async def clear(self, token: str, request: ClearRequest) -> ClearAnswer:
        """Raises HttpRefusal."""
        try:
            identity = await self._admitted(token, request.node)
            cleared, late = await self._write(request, identity.user)
        except NotFound as error:
            raise HttpRefusal(404, "NotFound", f"node {request.node}: no such Node, or it has no NodeHealth") from error
        except (ApiError, ConfigError) as error:
            raise HttpRefusal(503, "ServiceUnavailable", f"the API server request failed: {error}") from error
        for entry in cleared:
            log.info(
                "node %s: %s %s cleared up to occurrence %d by %s from the fleet page",
                *(request.node, entry.check, entry.component, entry.occurrence, identity.user),
            )
        return ClearAnswer(identity.user, cleared, late)

    async def _admitted(self, token: str, node: str) -> Identity:
        identity = await self._reviews.who(token)
        if identity is None:
            raise unauthorized("the API server rejected this token")
        if not await self._reviews.may(identity, "patch", GROUP, PLURAL, name=node):
            raise HttpRefusal(403, "Forbidden", f"{identity.user} has no permission to patch {PLURAL}.{GROUP} {node}")
        return identity

    async def _write(self, request: ClearRequest, user: str) -> tuple[tuple[ClearEntry, ...], int]:
        """The written entries, and the number of entries for which there was no room."""
        for _ in range(TRIES):
            node = await self._client.get(f"/api/v1/nodes/{request.node}", type=Node)
            health = await self._client.get(f"{PATH}/{request.node}", type=NodeHealth)
            at = rfc3339(self._now())
            found = clear_entries(health, read_record(node), request.check, request.component, user, at)
            new, late = found[:CLEAR_LIMIT], len(found[CLEAR_LIMIT:])
            if not new:
                return (), 0
            body = {
                "metadata": {"resourceVersion": health.metadata.resource_version},
                "spec": {"clear": msgspec.to_builtins(merge_clears(health.spec.clear, new))},
            }
            try:
                await self._client.patch(f"{PATH}/{request.node}", body)
            except Conflict:
                continue
            return new, late
        raise HttpRefusal(
            409, "Conflict", f"node {request.node}: others changed its NodeHealth {TRIES} times meanwhile; try again"
        )

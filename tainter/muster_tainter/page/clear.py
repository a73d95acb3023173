"""POST /api/clear {node, check?, component?}: a person's word from the page that faults are over.

It is taken from whoever may patch that NodeHealth, by the API server's word, and written in their name as
``muster clear`` writes it; the tainter that leads then closes the faults as for that. Any replica takes it.
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
from muster_tainter.faults.node_record import read_record
from muster_tainter.http.volume_trials import HttpRefusal, unauthorized

log = logging.getLogger(__name__)

TRIES = 5  # another writer of the same NodeHealth between reading and writing


class ClearRequest(BaseModel):
    """check, component: None: all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    node: str = Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    check: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="of the findings to clear; none: all checks"
    )
    component: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, description="of the findings to clear, as gpu/0000:3b:00.0; none: all components"
    )


class ClearAnswer(msgspec.Struct, frozen=True):
    """by: whose token it was; cleared: as it was written; late: so many more had no room, and take another call."""

    by: str
    cleared: tuple[ClearEntry, ...]
    late: int


class ClearHandler:
    """client: writes NodeHealths with the tainter's rights. now: seconds since the epoch."""

    def __init__(self, client: KubeClient, reviews: Reviews, *, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._reviews = reviews
        self._now = now

    async def clear(self, token: str, asked: ClearRequest) -> ClearAnswer:
        """Raises HttpRefusal."""
        try:
            identity = await self._admitted(token, asked.node)
            cleared, late = await self._write(asked, identity.user)
        except NotFound as error:
            raise HttpRefusal(404, "NotFound", f"node {asked.node}: there is no Node or no NodeHealth of it") from error
        except (ApiError, ConfigError) as error:
            raise HttpRefusal(503, "ServiceUnavailable", f"the API server cannot be asked: {error}") from error
        for entry in cleared:
            log.info(
                "node %s: %s %s cleared up to occurrence %d by %s from the page",
                *(asked.node, entry.check, entry.component, entry.occurrence, identity.user),
            )
        return ClearAnswer(identity.user, cleared, late)

    async def _admitted(self, token: str, node: str) -> Identity:
        identity = await self._reviews.who(token)
        if identity is None:
            raise unauthorized("the API server does not know this token")
        if not await self._reviews.may(identity, "patch", GROUP, PLURAL, name=node):
            raise HttpRefusal(403, "Forbidden", f"{identity.user} may not patch {PLURAL}.{GROUP} {node}")
        return identity

    async def _write(self, asked: ClearRequest, user: str) -> tuple[tuple[ClearEntry, ...], int]:
        """What was written; how many more there was no room for."""
        for _ in range(TRIES):
            node = await self._client.get(f"/api/v1/nodes/{asked.node}", type=Node)
            health = await self._client.get(f"{PATH}/{asked.node}", type=NodeHealth)
            found = clear_entries(health, read_record(node), asked.check, asked.component, user, rfc3339(self._now()))
            new, late = found[:CLEAR_LIMIT], len(found[CLEAR_LIMIT:])
            if not new:
                return (), 0
            body = {
                "metadata": {"resourceVersion": health.metadata.resource_version},
                "spec": {"clear": msgspec.to_builtins(merge_clears(health.spec.clear, new))},
            }
            try:
                await self._client.patch(f"{PATH}/{asked.node}", body)
            except Conflict:
                continue
            return new, late
        raise HttpRefusal(
            409, "Conflict", f"node {asked.node} was written by others {TRIES} times meanwhile: try again"
        )

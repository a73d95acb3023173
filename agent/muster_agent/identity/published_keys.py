"""Looks up the fingerprints that agents have published in their NodeHealths.

Only the agent of a node can write its NodeHealth's status (docs/rights.md), so the holder of the key with that
fingerprint is that agent.
"""

import re
import time
from collections.abc import Callable

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Api
from muster_kube.nodehealth import PATH, AgentIdentity

NODE = "Muster-Node"  # header: the node whose agent the caller claims to be
KEPT_S = 60.0  # a query of a fleet, or a measurement, asks for one node many times
AGAIN_S = 2.0  # a different fingerprint is looked up again after this time: the agent may have restarted
KEPT_LIMIT = 256
_NODE = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}", re.ASCII)


class _Status(Api, frozen=True):
    agent: AgentIdentity = AgentIdentity()


class _Health(Api, frozen=True):
    status: _Status = _Status()


class _Kept(msgspec.Struct, frozen=True):
    fingerprint: str
    at: float


class PublishedKeys:
    """``client`` must be open during each call. on_wrong: called for each key that is not the published one."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_wrong: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_wrong = on_wrong
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def belongs(self, fingerprint: str, node: str) -> bool:
        """Whether the agent of ``node`` has published ``fingerprint``. Raises ApiError or ConfigError."""
        if not fingerprint or not _NODE.fullmatch(node):
            return False
        kept, now = self._kept.get(node), self._clock()
        if kept is None or now >= kept.at + (KEPT_S if kept.fingerprint == fingerprint else AGAIN_S):
            kept = self._keep(node, await self._published(node))
        if kept.fingerprint != fingerprint:
            self._on_wrong()
            return False
        return True

    async def _published(self, node: str) -> str:
        try:
            return (await self._client.get(f"{PATH}/{node}", type=_Health)).status.agent.fingerprint
        except NotFound:
            return ""

    def _keep(self, node: str, fingerprint: str) -> _Kept:
        self._kept.pop(node, None)
        if len(self._kept) >= KEPT_LIMIT:
            del self._kept[next(iter(self._kept))]
        kept = self._kept[node] = _Kept(fingerprint, self._clock())
        return kept

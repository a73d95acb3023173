"""Selects the peers of the check ping: the agents of a few EndpointSlices of the headless Service.

The slices are listed once and read again only when a peer does not answer. A watch would notify each of n agents of
every pod of all others, and hourly lists by 15,000 agents would be 19 MB/s. So each agent lists once, at its first run,
and keeps a few slices, chosen by a hash for each node. It reads a slice with a silent peer again, because a rollout
moves pods, and drops peers that the slice reports as down. While a slice is unchanged, the interval to the next read
grows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b

import msgspec

from muster_agent.fleet.members import DISCOVERY, HOSTNAME, VERSIONS, AgentEndpointSlice, AgentService
from muster_checks.base.execution import CannotTell
from muster_kube.api.client import KubeClient, Params
from muster_kube.api.errors import ApiError, ConfigError, NotFound

log = logging.getLogger(__name__)

SLICES = 4  # Kubernetes puts up to 100 endpoints into each: at 8 a minute, all are pinged within an hour
AGAIN_S, AGAIN_AT_MOST_S = 60.0, 3600.0  # shortest and longest interval between two reads of a slice
# an agent that finds fewer slices has started before the others: it lists again for a day, with doubling intervals
SETTLED_S = 64_000.0
SILENCE_S = 10.0
CONNECTED_S = 10.0  # time from the agent's start to its connection to the cluster


class _CachedSlice(msgspec.Struct):
    """A slice as last read. wait_s: minimum time until the next read."""

    peers: dict[str, str]
    read_at: float
    wait_s: float = AGAIN_S


class PingPeers:
    """node:        the agent's own node, which is never a peer
    connected_s: how long the first run waits for :meth:`connect`
    """

    def __init__(
        self,
        node: str,
        service: AgentService,
        *,
        connected_s: float = CONNECTED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._service = service
        self._connected_s = connected_s
        self._clock = clock
        self._client: asyncio.Future[KubeClient] | None = None
        self._slices: dict[str, _CachedSlice] = {}
        self._version = VERSIONS[0]
        self._listed_at: float | None = None
        self._list_again_s = AGAIN_S

    def connect(self, client: KubeClient) -> None:
        """Set the client of the API server, which must be open whenever ping runs."""
        connection = self._connection()
        if not connection.done():
            connection.set_result(client)

    async def known(self) -> Mapping[str, str]:
        """The peers, by node. Raises CannotTell if none are known."""
        if self._worth_listing():
            try:
                await self._list()
            except TimeoutError:
                self._complain("the agent is not connected yet")
            except (ApiError, ConfigError) as error:
                self._complain(str(error))
        return self._peers()

    async def confirmed(self, silent: Collection[str]) -> Mapping[str, str]:
        """The peers, after reading the slices of ``silent`` ones again."""
        for name, kept in list(self._slices.items()):
            now = self._clock()
            if not kept.peers.keys() & silent or now < kept.read_at + kept.wait_s:
                continue
            kept.read_at = now
            try:
                peers = (await self._read({"fieldSelector": f"metadata.name={name}"})).get(name, {})
            except (ApiError, ConfigError) as error:
                # this node may be cut off from the API server too, so its peers stay and their silence counts
                log.info("cannot read the peers of check ping again: %s", error)
                continue
            kept.wait_s = min(2 * kept.wait_s, AGAIN_AT_MOST_S) if peers == kept.peers else AGAIN_S
            kept.peers = peers
            if not peers:
                del self._slices[name]
                self._list_again_s = AGAIN_S
        return self._peers()

    def _worth_listing(self) -> bool:
        if self._listed_at is None:
            return True
        if len(self._slices) >= SLICES or self._list_again_s > SETTLED_S:
            return False
        return self._clock() >= self._listed_at + self._list_again_s

    def _complain(self, why: str) -> None:
        """Raises CannotTell if no peers are known."""
        if not self._slices:
            raise CannotTell(f"cannot list the other agents: {why}", "PeersUnknown")
        log.info("cannot list the peers of check ping again: %s", why)

    async def _list(self) -> None:
        async with asyncio.timeout(self._connected_s):
            await asyncio.shield(self._connection())
        found = await self._read({"labelSelector": f"kubernetes.io/service-name={self._service.name}"})
        now = self._clock()
        self._list_again_s = AGAIN_S if self._listed_at is None else 2 * self._list_again_s
        self._listed_at = now
        before, self._slices = self._slices, {}
        for name, peers in found.items():
            if name in before and before[name].peers == peers:
                self._slices[name] = before[name]
            elif peers:
                self._slices[name] = _CachedSlice(peers, now)

    async def _read(self, params: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Peers by slice, from SLICES of the slices that match ``params``. Raises ApiError, ConfigError."""
        try:
            return await self._read_version(params)
        except NotFound:
            if self._version == VERSIONS[-1]:
                raise
            self._version = VERSIONS[-1]
            return await self._read_version(params)

    async def _read_version(self, params: Mapping[str, str]) -> dict[str, dict[str, str]]:
        client = await asyncio.shield(self._connection())
        path = f"{DISCOVERY}/{self._version}/namespaces/{self._service.namespace}/endpointslices"
        drawn: dict[str, dict[str, str]] = {}

        def keep(each: AgentEndpointSlice) -> AgentEndpointSlice:
            """Drop other slices at once, to save memory."""
            drawn[each.metadata.name] = believed_up(each, self._node)
            if len(drawn) > SLICES:
                del drawn[min(drawn, key=self._draw)]
            return AgentEndpointSlice(metadata=each.metadata)

        cached: Params = {**params, "resourceVersion": "0"}
        async for _ in client.list_pages(path, AgentEndpointSlice, params=cached, transform=keep, timeout_s=SILENCE_S):
            pass  # `keep` collects the slices
        return drawn

    def _draw(self, name: str) -> bytes:
        return blake2b(f"{self._node}/{name}".encode(), digest_size=8).digest()

    def _connection(self) -> "asyncio.Future[KubeClient]":
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
        return self._client

    def _peers(self) -> dict[str, str]:
        return {name: address for kept in self._slices.values() for name, address in kept.peers.items()}


def believed_up(each: AgentEndpointSlice, own: str) -> dict[str, str]:
    """Addresses by node of the endpoints that are not reported as down."""
    found: dict[str, str] = {}
    for endpoint in each.endpoints or ():
        conditions = endpoint.conditions
        node = endpoint.node_name or (endpoint.topology or {}).get(HOSTNAME, "")
        if conditions.terminating or conditions.serving is False or conditions.ready is False:
            continue
        if not node or node == own:
            continue
        if endpoint.addresses and each.address_type != "FQDN":
            found[node] = endpoint.addresses[0]
    return found

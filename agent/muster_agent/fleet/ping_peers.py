"""Whom the check ping asks: agents of a few EndpointSlices of the headless Service, found once and looked up again only
when somebody is silent.

A watch would tell each of n agents of every pod of all the others, and a list by each of 15,000 agents every hour is
19 MB a second. So there is one list, at the first run, of which a few slices are kept, drawn by hash for each node; an
idle cluster is asked nothing. A slice with a silent peer is read again: pods move in a rollout, and who is known to be
down is not asked. As long as that finds nothing new, it is done ever more rarely.
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

SLICES = 4  # of up to 100 endpoints each, as Kubernetes makes them: at 8 a minute all are asked within the hour
AGAIN_S, AGAIN_AT_MOST_S = 60.0, 3600.0  # between two looks at one slice
# who finds fewer slices is there before the others: all are looked for again, each time after twice as long, for a day
SETTLED_S = 64_000.0
SILENCE_S = 10.0
CONNECTED_S = 10.0  # from the agent's start until it speaks to its cluster


class _CachedSlice(msgspec.Struct):
    """A slice as it was last read. wait_s: until it is worth another look."""

    peers: dict[str, str]
    read_at: float
    wait_s: float = AGAIN_S


class PingPeers:
    """``node``: the own one, never its own peer;
    connected_s: how long the first run waits for :meth:`connect`."""

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
        """``client`` must be open whenever ping runs."""
        connection = self._connection()
        if not connection.done():
            connection.set_result(client)

    async def known(self) -> Mapping[str, str]:
        """Raises CannotTell."""
        if self._worth_listing():
            try:
                await self._list()
            except TimeoutError:
                self._complain("it is not reached yet")
            except (ApiError, ConfigError) as error:
                self._complain(str(error))
        return self._peers()

    async def confirmed(self, silent: Collection[str]) -> Mapping[str, str]:
        for name, kept in list(self._slices.items()):
            now = self._clock()
            if not kept.peers.keys() & silent or now < kept.read_at + kept.wait_s:
                continue
            kept.read_at = now
            try:
                peers = (await self._read({"fieldSelector": f"metadata.name={name}"})).get(name, {})
            except (ApiError, ConfigError) as error:
                # maybe cut off from the API server, too: what is known stays, and its silence counts
                log.info("peers of ping cannot be looked up again: %s", error)
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
        """Raises CannotTell where nobody is known."""
        if not self._slices:
            raise CannotTell(f"the API server does not say which other agents there are: {why}", "PeersUnknown")
        log.info("peers of ping cannot be listed again: %s", why)

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
        """Peers by slice: of all that ``params`` choose, SLICES drawn for this node. Raises ApiError, ConfigError."""
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
            """The rest is let go as it comes in."""
            drawn[each.metadata.name] = believed_up(each, self._node)
            if len(drawn) > SLICES:
                del drawn[min(drawn, key=self._draw)]
            return AgentEndpointSlice(metadata=each.metadata)

        cached: Params = {**params, "resourceVersion": "0"}
        async for _ in client.list_pages(path, AgentEndpointSlice, params=cached, transform=keep, timeout_s=SILENCE_S):
            pass  # `keep` has taken what is wanted of it
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
    """Address by node of the endpoints that are not known to be down."""
    found: dict[str, str] = {}
    for endpoint in each.endpoints or ():
        said = endpoint.conditions
        node = endpoint.node_name or (endpoint.topology or {}).get(HOSTNAME, "")
        if said.terminating or said.serving is False or said.ready is False or not node or node == own:
            continue
        if endpoint.addresses and each.address_type != "FQDN":
            found[node] = endpoint.addresses[0]
    return found

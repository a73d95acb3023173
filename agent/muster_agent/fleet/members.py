"""Lists the nodes of the fleet (from NodeHealths) and the addresses of their agents (from the EndpointSlices of the
headless Service).

The lists are requested only for a query that concerns other nodes; an idle agent lists nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.tainter_access import TainterAccess
from muster_kube.api.client import KubeClient, Params
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.api.objects import Api
from muster_kube.nodehealth import PATH as NODE_HEALTHS
from muster_kube.nodehealth import AgentIdentity

log = logging.getLogger(__name__)

KEPT_S = 5.0  # a script that queries node by node causes one list, and a new agent is found soon
SILENCE_S = 10.0  # timeout for the next byte from the API server
TAINTER_S = 10.0
SHOWN = 20  # names in an error
PORT = 3333  # if the Service declares no port
DISCOVERY = "/apis/discovery.k8s.io"
VERSIONS = ("v1", "v1beta1")  # Kubernetes 1.20 has v1beta1 only
HOSTNAME = "kubernetes.io/hostname"

T = TypeVar("T")


class FleetUnknown(Exception):
    """The nodes of the fleet are not known at present. The message says why, and what to do."""


class BadNodeSelection(ValueError):
    """The query names nodes that do not exist, or has an invalid selector."""


class AgentService(msgspec.Struct, frozen=True):
    """The headless Service of the agents."""

    namespace: str
    name: str


class _Named(Api, frozen=True):
    name: str = ""
    resource_version: str = ""


class _Status(Api, frozen=True):
    agent: AgentIdentity = AgentIdentity()


class _Health(Api, frozen=True):
    metadata: _Named
    status: _Status = _Status()


class _Target(Api, frozen=True):
    resource_version: str = ""


class _Conditions(Api, frozen=True):
    """None: not reported, which by the API's rules means ready, serving and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(Api, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = _Conditions()
    node_name: str | None = None
    topology: dict[str, str] | None = None  # v1beta1
    target_ref: _Target | None = None


class _Port(Api, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class AgentEndpointSlice(Api, frozen=True):
    """One EndpointSlice. The API sends null for empty lists."""

    metadata: _Named
    address_type: str = ""
    ports: tuple[_Port, ...] | None = None
    endpoints: tuple[_Endpoint, ...] | None = None


class _Version(Api, frozen=True):
    version: str = ""


class _Group(Api, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Row(msgspec.Struct):
    """A row of the tainter's /api/nodes."""

    node: str


class FleetMembers:
    """The nodes of the fleet, from the API server. ``client`` must be open during each call.

    node:    the agent's own node, which is a member in any case
    tainter: resolves selectors of jobs and labels; None: such selectors are not supported
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        service: AgentService,
        *,
        tainter: TainterAccess | None = None,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node = node
        self._service = service
        self._tainter = tainter
        self._kept_s = kept_s
        self._clock = clock
        self._version = ""
        self._kept: tuple[float, dict[str, PeerAgent]] | None = None
        self._listing: asyncio.Task[dict[str, PeerAgent]] | None = None

    async def list_members(self) -> dict[str, PeerAgent]:
        """All nodes with a NodeHealth, by name. An empty address: no agent runs there. Raises FleetUnknown."""
        if self._kept is not None and self._clock() < self._kept[0]:
            return self._kept[1]
        if self._listing is None:
            self._listing = asyncio.create_task(self._list())
            self._listing.add_done_callback(self._listed)
        # shielded: other callers share the list, so a cancelled caller must not cancel it
        return await asyncio.shield(self._listing)

    async def select(self, hosts: Collection[str] = (), *, job: str = "", nodelabel: str = "") -> list[PeerAgent]:
        """The union of the named and the selected nodes, sorted by name; all nodes if nothing is named or selected.

        job: ``NAMESPACE:key=value``, nodes on which such pods run; nodelabel: ``key=value[,…]``.
        Raises BadNodeSelection for names of nodes that do not exist, FleetUnknown.
        """
        members = await self.list_members()
        if unknown := sorted(set(hosts) - members.keys()):
            raise BadNodeSelection(f"host: {_shortened(unknown)}: expected some of {_shortened(sorted(members))}")
        selectors = {name: value for name, value in (("job", job), ("nodelabel", nodelabel)) if value}
        if not hosts and not selectors:
            return [members[name] for name in sorted(members)]
        selected = await asyncio.gather(*(self.resolve_selector(name, value) for name, value in selectors.items()))
        return [members[name] for name in sorted(set(hosts).union(*selected) & members.keys())]

    async def resolve_selector(self, name: str, value: str) -> set[str]:
        """Names of the nodes that the tainter finds for a selector. name: ``job`` or ``nodelabel``.

        Raises BadNodeSelection if the tainter rejects the selector, FleetUnknown.
        """
        if self._tainter is None:
            raise FleetUnknown(f"{name}: only the tainter can resolve it: set tainter_url in the agent's settings")
        try:
            async with self._tainter.client(without_token=True) as tainter:
                path = f"/api/nodes?{urlencode({name: value})}"
                rows = await tainter.get(path, type=list[_Row], timeout_s=TAINTER_S)
        except ApiError as error:
            if error.status == 400:  # its message names the parameter and the value
                raise BadNodeSelection(error.message) from error
            raise FleetUnknown(f"{name}: cannot query the tainter at {self._tainter.url}: {error}") from error
        except (ConfigError, OSError) as error:
            raise FleetUnknown(f"{name}: cannot query the tainter at {self._tainter.url}: {error}") from error
        return {row.node for row in rows}

    async def _list(self) -> dict[str, PeerAgent]:
        try:
            healths = await self._all(NODE_HEALTHS, _Health, {})
            slices = await self._slices()
        except (ApiError, ConfigError) as error:
            raise FleetUnknown(f"cannot list the nodes and agents of the fleet: {error}") from error
        found = agent_addresses(slices)
        agents = {self._node: AgentIdentity()} | {health.metadata.name: health.status.agent for health in healths}
        members = {
            name: msgspec.structs.replace(
                found.get(name) or PeerAgent(name, ""), tls_port=agent.tls_port, fingerprint=agent.fingerprint
            )
            for name, agent in agents.items()
        }
        self._kept = (self._clock() + self._kept_s, members)
        # 15,000 of them take 3 MB
        asyncio.get_running_loop().call_later(2 * self._kept_s, self._forget, members)
        return members

    def _listed(self, task: asyncio.Task[dict[str, PeerAgent]]) -> None:
        self._listing = None  # it would keep its result in memory
        if not task.cancelled():
            task.exception()  # retrieved here too: all callers may have been cancelled

    def _forget(self, members: dict[str, PeerAgent]) -> None:
        if self._kept is not None and self._kept[1] is members:
            self._kept = None

    async def _slices(self) -> list[AgentEndpointSlice]:
        known = bool(self._version)
        if not known:
            self._version = await self._choose_version()
        place = f"{DISCOVERY}/{self._version}/namespaces/{self._service.namespace}/endpointslices"
        try:
            return await self._all(
                place, AgentEndpointSlice, {"labelSelector": f"kubernetes.io/service-name={self._service.name}"}
            )
        except NotFound:
            self._version = ""
            if not known:
                raise
            return await self._slices()  # an upgrade of the cluster has removed the version

    async def _choose_version(self) -> str:
        served = {each.version for each in (await self._client.get(DISCOVERY, type=_Group)).versions}
        for version in VERSIONS:
            if version in served:
                return version
        found = _shortened(sorted(served))
        raise FleetUnknown(
            f"the API server has discovery.k8s.io in versions {found}; expected one of {', '.join(VERSIONS)}"
        )

    async def _all(self, path: str, kind: type[T], params: Params) -> list[T]:
        """All items, from the API server's cache (resourceVersion 0), which spares etcd."""
        items: list[T] = []
        cached: Params = {**params, "resourceVersion": "0"}
        async for page in self._client.list_pages(path, kind, params=cached, timeout_s=SILENCE_S):
            items += page.items
            for broken in page.undecodable:
                log.warning(
                    "%s: ignoring %s, which cannot be decoded: %s", path, broken.key or "(no name)", broken.error
                )
        return items


def agent_addresses(slices: Iterable[AgentEndpointSlice]) -> dict[str, PeerAgent]:
    """The agent of each node. If a node has two, as during a rollout, the preferred one is not terminating, is ready,
    and is the newer pod. Addresses that are not IP addresses (FQDN slices) are ignored."""
    best: dict[str, tuple[tuple[bool, bool, bool, int], PeerAgent]] = {}
    for each in slices:
        port = _port(each.ports or ())
        for endpoint in each.endpoints or ():
            node = endpoint.node_name or (endpoint.topology or {}).get(HOSTNAME, "")
            address = _address(endpoint.addresses)
            if not node or not address:
                continue
            rank = _rank(endpoint)
            if node not in best or rank > best[node][0]:
                best[node] = (rank, PeerAgent(node, address, port))
    return {node: peer for node, (_, peer) in best.items()}


def _rank(endpoint: _Endpoint) -> tuple[bool, bool, bool, int]:
    conditions = endpoint.conditions
    version = endpoint.target_ref.resource_version if endpoint.target_ref is not None else ""
    return (
        not conditions.terminating,
        conditions.serving is not False,
        conditions.ready is not False,
        # the API forbids comparing versions, but every server counts them up, and this only breaks a tie
        int(version[:20]) if version.isascii() and version.isdigit() else 0,
    )


def _port(ports: Collection[_Port]) -> int:
    """The port named ``http``, or else the first TCP port."""
    tcp = [each for each in ports if each.port and each.protocol in (None, "", "TCP")]
    named = [each for each in tcp if each.name == "http"]
    return next((each.port for each in [*named, *tcp] if each.port), PORT)


def _address(found: Iterable[str]) -> str:
    for text in found:
        try:
            return str(ip_address(text))
        except ValueError:
            continue
    return ""


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "none") + more

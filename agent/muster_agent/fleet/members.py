"""Which nodes there are, and where their agents answer: the NodeHealth list, and the headless Service's EndpointSlices.

Asked when somebody asks for more than this node, never before: an idle agent lists nothing.
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

log = logging.getLogger(__name__)

KEPT_S = 5.0  # a script that asks node by node makes one list of it; a new agent is seen on the next call
SILENCE_S = 10.0  # of the API server in the middle of a list
TAINTER_S = 10.0
SHOWN = 20  # names in an error
PORT = 3333  # where a Service names no port
DISCOVERY = "/apis/discovery.k8s.io"
VERSIONS = ("v1", "v1beta1")  # the second is all there is below Kubernetes 1.21
HOSTNAME = "kubernetes.io/hostname"

T = TypeVar("T")


class FleetUnknown(Exception):
    """The fleet cannot be asked for now; ``str()``: why, and what would help."""


class BadNodeSelection(ValueError):
    """Nodes are asked for that there are not, or a selector is none."""


class AgentService(msgspec.Struct, frozen=True):
    """The headless Service of the agents."""

    namespace: str
    name: str


class _Named(Api, frozen=True):
    name: str = ""
    resource_version: str = ""


class _Health(Api, frozen=True):
    metadata: _Named


class _Target(Api, frozen=True):
    resource_version: str = ""


class _Conditions(Api, frozen=True):
    """None: not said, which means yes, yes, no."""

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
    """One EndpointSlice. The API sends null for lists that are empty."""

    metadata: _Named
    address_type: str = ""
    ports: tuple[_Port, ...] | None = None
    endpoints: tuple[_Endpoint, ...] | None = None


class _Version(Api, frozen=True):
    version: str = ""


class _Group(Api, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Row(msgspec.Struct):
    """Of the tainter's /api/nodes."""

    node: str


class FleetMembers:
    """The fleet as the API server knows it. ``client`` must be open whenever this is asked.

    node:    the own one, which is there whatever the API server says
    tainter: whom to ask about pods and labels; None: nobody
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
        """Every node that has a NodeHealth, by name; an empty address: no agent runs there. Raises FleetUnknown."""
        if self._kept is not None and self._clock() < self._kept[0]:
            return self._kept[1]
        if self._listing is None:
            self._listing = asyncio.create_task(self._list())
            self._listing.add_done_callback(self._listed)
        # shielded: a caller who hangs up must not take the list from the others
        return await asyncio.shield(self._listing)

    async def select(self, hosts: Collection[str] = (), *, job: str = "", nodelabel: str = "") -> list[PeerAgent]:
        """The nodes that are named and selected, in the order of their names; without either all of them.

        job: ``NAMESPACE:key=value``, the nodes on which such pods run; nodelabel: ``key=value[,…]``.
        Raises BadNodeSelection for names that no node has, FleetUnknown.
        """
        members = await self.list_members()
        if unknown := sorted(set(hosts) - members.keys()):
            raise BadNodeSelection(f"host: {_shortened(unknown)}: expected some of {_shortened(sorted(members))}")
        chosen = set(hosts) or set(members)
        if job or nodelabel:
            chosen &= await self.resolve_selectors(job=job, nodelabel=nodelabel)
        return [members[name] for name in sorted(chosen & members.keys())]

    async def resolve_selectors(self, *, job: str = "", nodelabel: str = "") -> set[str]:
        """Names of the nodes that the tainter finds.

        Raises BadNodeSelection where the tainter rejects a selector, FleetUnknown.
        """
        given = {name: value for name, value in (("job", job), ("nodelabel", nodelabel)) if value}
        asked = " and ".join(given)
        if self._tainter is None:
            raise FleetUnknown(f"{asked}: the tainter knows pods and labels, and the setting tainter_url names none")
        try:
            async with self._tainter.client(without_token=True) as tainter:
                path = f"/api/nodes?{urlencode(given)}"
                rows = await tainter.get(path, type=list[_Row], timeout_s=TAINTER_S)
        except ApiError as error:
            if error.status == 400:
                raise BadNodeSelection(f"{asked}: {error.message}") from error
            raise FleetUnknown(f"{asked}: tainter at {self._tainter.url}: {error}") from error
        except (ConfigError, OSError) as error:
            raise FleetUnknown(f"{asked}: tainter at {self._tainter.url}: {error}") from error
        return {row.node for row in rows}

    async def _list(self) -> dict[str, PeerAgent]:
        try:
            healths = await self._all(NODE_HEALTHS, _Health, {})
            slices = await self._slices()
        except (ApiError, ConfigError) as error:
            raise FleetUnknown(f"the API server cannot be asked which nodes there are: {error}") from error
        found = agent_addresses(slices)
        names = {health.metadata.name for health in healths} | {self._node}
        members = {name: found.get(name) or PeerAgent(name, "") for name in names}
        self._kept = (self._clock() + self._kept_s, members)
        # 15,000 of them are 3 MB, which nobody needs a minute later
        asyncio.get_running_loop().call_later(2 * self._kept_s, self._forget, members)
        return members

    def _listed(self, task: asyncio.Task[dict[str, PeerAgent]]) -> None:
        self._listing = None  # it holds what it returned
        if not task.cancelled():
            task.exception()  # told to whoever still waits; with nobody left it is of no interest

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
            return await self._slices()  # the cluster has been upgraded meanwhile

    async def _choose_version(self) -> str:
        served = {each.version for each in (await self._client.get(DISCOVERY, type=_Group)).versions}
        for version in VERSIONS:
            if version in served:
                return version
        found = _shortened(sorted(served))
        raise FleetUnknown(f"the API server serves discovery.k8s.io in {found}: expected one of {', '.join(VERSIONS)}")

    async def _all(self, path: str, kind: type[T], params: Params) -> list[T]:
        """All items from the server's cache (resourceVersion 0): a moment old, and free of charge for etcd."""
        items: list[T] = []
        cached: Params = {**params, "resourceVersion": "0"}
        async for page in self._client.list_pages(path, kind, params=cached, timeout_s=SILENCE_S):
            items += page.items
            for broken in page.undecodable:
                log.warning("%s %s is left out: %s", path, broken.key or "(no name)", broken.error)
        return items


def agent_addresses(slices: Iterable[AgentEndpointSlice]) -> dict[str, PeerAgent]:
    """Where each node's agent is. Of two on one node, as in a rollout, the one that stays: not being ended, ready, the
    newer pod. Addresses that are none (FQDN slices) are left out."""
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
    said = endpoint.conditions
    version = endpoint.target_ref.resource_version if endpoint.target_ref is not None else ""
    return (
        not said.terminating,
        said.serving is not False,
        said.ready is not False,
        # not for comparing, says the API; but all servers count it up, and it only decides between two that answer
        int(version[:20]) if version.isascii() and version.isdigit() else 0,
    )


def _port(ports: Collection[_Port]) -> int:
    """The one called ``http``, else the first of TCP."""
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

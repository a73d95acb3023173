"""A taken node, or somebody in the network, poses as an agent: to get what agents send each other, or to have other
nodes do what an agent may request. Real servers and sockets; the API server is a stand-in that knows the NodeHealths.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest
from tests.kube.conftest import FakeApi, Wire
from tests.security.test_heavy_checks_of_strangers import BurningNode

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.peer_client import HttpPeerClient, PeerCallFailed
from muster_agent.http.access import AccessControl
from muster_agent.identity.certificate import make_certificate
from muster_agent.identity.own_identity import OwnIdentity, make_identity, read_identity
from muster_agent.identity.published_keys import PublishedKeys
from muster_agent.identity.tls_protocol import TlsProtocol
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.self_reviews import ACCESS_REVIEWS, SelfReviews
from muster_kube.http.server import listen, make_server

GUARD_S = 30.0
HEAVY = {"check": "burn", "host": "node-2"}
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"

Keys = dict[str, OwnIdentity]


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    made = FakeApi()
    await made.start()
    unauthorized = Wire.Reply(401, Wire.failure(401, "Unauthorized", "Unauthorized"))
    made.on("POST", ACCESS_REVIEWS, unauthorized)  # as for every token for another audience
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def keys() -> Keys:
    """Of the agents of three nodes, and of nobody's agent."""
    return {name: read_identity(*make_certificate()) for name in ("node-1", "node-2", "node-3", "thief")}


@dataclass
class Node:
    """node-2 and its agent, which counts loopback as any other address."""

    peer: PeerAgent
    burning: BurningNode


@asynccontextmanager
async def node_2(api: FakeApi, keys: Keys) -> AsyncIterator[Node]:
    for name in ("node-1", "node-2", "node-3"):
        agent = {"podUID": name, "fingerprint": keys[name].fingerprint, "tlsPort": 3335}
        api.on("GET", f"{HEALTHS}/{name}", Wire.Reply(200, {"metadata": {"name": name}, "status": {"agent": agent}}))
    config = ClusterConfig("test", f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=GUARD_S) as client:
        access = AccessControl(SelfReviews(config), keys=PublishedKeys(client), require_token=True)
        burning = BurningNode(node="node-2", access=access)
        sockets = [listen("127.0.0.1", 0), listen("127.0.0.1", 0)]
        tls = make_server(burning.app, tls=keys["node-2"].server, protocol=TlsProtocol)
        servers = [make_server(burning.app), tls]
        tasks = [asyncio.create_task(each.serve(sockets=[at])) for each, at in zip(servers, sockets, strict=True)]
        ports = [each.getsockname()[1] for each in sockets]
        try:
            yield Node(PeerAgent("node-2", "127.0.0.1", *ports, keys["node-2"].fingerprint), burning)
        finally:
            for each in servers:
                each.should_exit = True
            await asyncio.gather(*tasks)


async def failure(client: HttpPeerClient, peer: PeerAgent) -> PeerCallFailed:
    with pytest.raises(PeerCallFailed) as caught:
        await client.get_json(peer, "/status", HEAVY | {"format": "json"}, GUARD_S)
    return caught.value


async def test_an_agent_has_another_one_run_a_heavy_check(api: FakeApi, keys: Keys):
    async with node_2(api, keys) as node:
        client = HttpPeerClient("node-1", keys["node-1"])
        answer = await client.get_json(node.peer, "/status", HEAVY | {"format": "json"}, GUARD_S)
    assert [each["check"] for each in answer["nodes"][0]["results"]] == ["burn"]
    assert node.burning.runs == 1


@pytest.mark.parametrize(
    ("claims", "has"), [("node-1", "node-3"), ("node-1", "thief"), ("thief", "thief"), ("", "thief")]
)
async def test_who_poses_as_the_agent_of_another_node_gets_nothing_run(api: FakeApi, keys: Keys, claims: str, has: str):
    async with node_2(api, keys) as node:
        error = await failure(HttpPeerClient(claims, keys[has]), node.peer)
    assert (error.status, node.burning.runs) == (401, 0)


async def test_a_client_without_a_key_gets_no_answer_at_the_port_for_agents(api: FakeApi, keys: Keys):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with node_2(api, keys) as node, httpx2.AsyncClient(verify=context, timeout=GUARD_S) as stranger:
        with pytest.raises(httpx2.TransportError):
            await stranger.get(f"https://127.0.0.1:{node.peer.tls_port}/healthz", headers={"Muster-Node": "node-1"})


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer of-an-agent"},  # for the audience muster, taken on another node
        {"Muster-Node": "node-1"},
        {"Muster-Node": "node-1", "User-Agent": "muster-agent"},
    ],
)
async def test_the_open_port_takes_nobody_for_an_agent(api: FakeApi, keys: Keys, headers: dict[str, str]):
    async with node_2(api, keys) as node, httpx2.AsyncClient(timeout=GUARD_S) as stranger:
        url = f"http://127.0.0.1:{node.peer.port}"
        forced = await stranger.get(f"{url}/status", params=HEAVY | {"force": "true"}, headers=headers)
        measuring = await stranger.post(f"{url}/iperf/interfaces", json={"plane": "data"}, headers=headers)
    assert (forced.status_code, measuring.status_code, node.burning.runs) == (401, 401, 0)


class Thief:
    """Listens where an agent is expected, answers 401 to everything and keeps what it has received."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.received = b""
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Thief"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, family=socket.AF_INET, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(4096):
                self.received += data
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_a_peer_that_does_not_prove_its_key_receives_nothing(keys: Keys, *, tls: bool):
    async with Thief(keys["thief"].server if tls else None).listening() as thief:
        peer = PeerAgent("node-2", "127.0.0.1", thief.port, thief.port, keys["node-2"].fingerprint)
        error = await failure(HttpPeerClient("node-1", keys["node-1"]), peer)
    assert error.reason == ("WrongKey" if tls else "Unreachable")
    assert b"HTTP" not in thief.received
    assert b"burn" not in thief.received


async def test_an_agent_that_publishes_no_key_receives_nothing(keys: Keys):
    async with Thief(None).listening() as thief:
        error = await failure(HttpPeerClient("node-1", keys["node-1"]), PeerAgent("node-2", "127.0.0.1", thief.port))
    assert (error.reason, thief.received) == ("NoKey", b"")


async def test_an_agent_that_has_restarted_is_known_by_its_new_key(api: FakeApi, keys: Keys):
    now = [0.0]
    published = [keys["node-1"].fingerprint]

    def health(_: object) -> Wire.Reply:
        return Wire.Reply(200, {"metadata": {"name": "node-1"}, "status": {"agent": {"fingerprint": published[0]}}})

    api.on("GET", f"{HEALTHS}/node-1", health)
    async with KubeClient(ClusterConfig("test", f"http://127.0.0.1:{api.port}"), timeout_s=GUARD_S) as client:
        known = PublishedKeys(client, clock=lambda: now[0])
        assert await known.belongs(keys["node-1"].fingerprint, "node-1")
        published[0] = keys["thief"].fingerprint
        now[0] += 3.0
        assert await known.belongs(keys["thief"].fingerprint, "node-1")
        assert not await known.belongs(keys["node-1"].fingerprint, "node-1"), "the former key is worth nothing"
        assert not await known.belongs(keys["thief"].fingerprint, "../nodes/node-1")


async def test_every_start_makes_another_key():
    first, second = await make_identity(), await make_identity()
    assert len(first.fingerprint) == 64
    assert first.fingerprint != second.fingerprint

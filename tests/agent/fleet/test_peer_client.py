"""How one agent asks another: what goes over the wire, and what becomes of every answer there may be."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.kube.conftest import Drop, FakeApi, Reply, Stream, Wire

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.peer_client import HttpPeerClient, PeerCallFailed, peer_endpoint
from muster_agent.query.node_answer import PEER_AGENT

FAR_S = 300.0  # reached by faked time only


class Body(BaseModel):
    port: int = 5201


@pytest.fixture
async def peer_agent() -> AsyncIterator[FakeApi]:
    made = FakeApi()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def peer(peer_agent: FakeApi) -> PeerAgent:
    return PeerAgent("node-7", "127.0.0.1", peer_agent.port)


async def failure(calls: HttpPeerClient, peer: PeerAgent, timeout_s: float = FAR_S) -> PeerCallFailed:
    with pytest.raises(PeerCallFailed) as caught:
        await calls.get_json(peer, "/status", {}, timeout_s)
    return caught.value


async def test_a_question_goes_out_as_typed_with_our_name(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("GET", "/status", Reply(200, {"nodes": []}))
    params = {"check": "ping,dmesg", "peers": "a b&c=d"}
    assert await HttpPeerClient("node-1", None).get_json(peer, "/status", params, FAR_S) == {"nodes": []}
    [asked] = peer_agent.asked
    assert asked.query == params
    assert asked.headers["user-agent"] == PEER_AGENT
    assert asked.headers["host"] == f"127.0.0.1:{peer_agent.port}"


async def test_a_body_goes_out_as_json(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("POST", "/iperf/client", Reply(200, [1, 2]))
    assert await HttpPeerClient("node-1", None).post_json(peer, "/iperf/client", Body(), FAR_S) == [1, 2]
    assert peer_agent.asked[0].body == b'{"port":5201}'
    assert peer_agent.asked[0].headers["content-type"] == "application/json"


async def test_proxies_of_the_environment_are_not_used(
    peer_agent: FakeApi, peer: PeerAgent, monkeypatch: pytest.MonkeyPatch
):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    peer_agent.on("GET", "/status", Reply(200, {}))
    assert await HttpPeerClient("node-1", None).get_json(peer, "/status", {}, FAR_S) == {}


@pytest.mark.parametrize(
    ("answer", "reason", "status", "said"),
    [
        (Reply(400, b"check: 'x': expected all or one of dmesg\n"), "Refused", 400, "expected all or one of dmesg"),
        (Reply(403, b"force: takes a right"), "Refused", 403, "takes a right"),
        (Reply(421, b"this is the agent of node-8"), "WrongNode", 421, "this is the agent of node-8"),
        (Reply(500, b""), "Refused", 500, "500"),
        (Reply(503, b"x" * 100_000), "Refused", 503, "xxx"),
        (Reply(302, b"", headers={"Location": "http://127.0.0.1:1/"}), "BadAnswer", 302, ""),
        (Reply(200, b"<h1>proxy</h1>"), "BadAnswer", 0, "<h1>proxy"),
        (Reply(200, b""), "BadAnswer", 0, "''"),
        (Reply(200, b"\xff\xfe\x00"), "BadAnswer", 0, "\\x00"),
        (Reply(200, b'{"nodes": [' + b" " * 1001), "BadAnswer", 0, "1000"),
        (Reply(200, b"{}", headers={"Transfer-Encoding": "nonsense"}), "Unreachable", 0, "127.0.0.1"),
        (Drop(), "Unreachable", 0, ""),
    ],
)
async def test_whatever_is_wrong_with_an_answer_is_named(
    peer_agent: FakeApi, peer: PeerAgent, answer: Any, reason: str, status: int, said: str
):
    peer_agent.on("GET", "/status", answer)
    error = await failure(HttpPeerClient("node-1", None, answer_limit=1000), peer)
    assert (error.reason, error.status) == (reason, status)
    assert said in error.message
    assert f"127.0.0.1:{peer_agent.port}" in error.message
    assert len(error.message.encode()) <= 256


async def test_an_answer_of_brackets_without_end_is_no_json(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("GET", "/status", Reply(200, b"[" * 100_000))
    assert (await failure(HttpPeerClient("node-1", None), peer)).reason == "BadAnswer"


async def test_a_port_where_nobody_listens_is_unreachable(peer_agent: FakeApi, peer: PeerAgent):
    await peer_agent.stop()
    error = await failure(HttpPeerClient("node-1", None), peer)
    assert (error.reason, error.status) == ("Unreachable", 0)


async def test_a_peer_that_speaks_something_else_is_unreachable():
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n" * 3)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    error = await failure(
        HttpPeerClient("node-1", None), PeerAgent("node-7", "127.0.0.1", server.sockets[0].getsockname()[1])
    )
    assert error.reason in ("Unreachable", "BadAnswer")
    server.close()


async def test_a_peer_without_an_address_is_asked_nothing():
    error = await failure(HttpPeerClient("node-1", None), PeerAgent("node-7", ""))
    assert (error.reason, "node-7" in error.message) == ("NoAgent", True)


async def test_a_peer_that_takes_the_call_and_says_nothing_is_given_up_in_time(
    peer_agent: FakeApi, peer: PeerAgent, loop_time: Any
):
    peer_agent.on("GET", "/status", Stream())
    call = asyncio.create_task(failure(HttpPeerClient("node-1", None), peer, timeout_s=30.0))
    await Wire.until(lambda: peer_agent.asked)
    assert not call.done()
    await loop_time.passes(31.0)
    error = await call
    assert error.reason == "NoAnswer"
    assert " 30 s" in error.message


async def test_calls_beyond_the_bound_wait_and_their_time_has_not_begun(
    peer_agent: FakeApi, peer: PeerAgent, loop_time: Any
):
    peer_agent.on("GET", "/status", Stream(), Reply(200, {}))
    calls = HttpPeerClient("node-1", None, at_once=1)
    first = asyncio.create_task(failure(calls, peer, timeout_s=30.0))
    await Wire.until(lambda: peer_agent.asked)
    second = asyncio.create_task(calls.get_json(peer, "/status", {}, 10.0))
    await loop_time.passes(15.0)
    assert len(peer_agent.asked) == 1
    await loop_time.passes(31.0)
    assert (await first).reason == "NoAnswer"
    assert await second == {}


async def test_a_call_that_nobody_waits_for_closes_its_connection(peer: PeerAgent):
    closed = asyncio.Event()
    came = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        assert await reader.read() == b""
        closed.set()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    silent = PeerAgent("node-7", "127.0.0.1", server.sockets[0].getsockname()[1])
    call = asyncio.create_task(HttpPeerClient("node-1", None).get_json(silent, "/status", {}, FAR_S))
    await came.wait()
    call.cancel()
    await asyncio.wait([call])
    async with asyncio.timeout(60):
        await closed.wait()
    server.close()


async def test_lines_come_as_they_are_sent_until_the_peer_ends(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("POST", "/iperf/servers", Stream((b'{"a":', b"1}\n\n{}\n", b"cut off"), then="end"))
    async with HttpPeerClient("node-1", None).stream(peer, "/iperf/servers", Body()) as lines:
        assert [line async for line in lines] == [b'{"a":1}', b"{}"]


async def test_a_stream_that_is_left_closes_its_connection(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("POST", "/iperf/servers", Stream((b"1\n",)))
    async with HttpPeerClient("node-1", None).stream(peer, "/iperf/servers", Body()) as lines:
        assert await anext(lines) == b"1"
    assert len(peer_agent.asked) == 1


async def test_a_stream_that_breaks_off_or_is_refused_says_so(peer_agent: FakeApi, peer: PeerAgent):
    peer_agent.on("POST", "/iperf/servers", Stream((b"1\n",), then="cut"), Reply(403, b"not yours"))
    calls = HttpPeerClient("node-1", None)
    with pytest.raises(PeerCallFailed, match="Unreachable"):
        async with calls.stream(peer, "/iperf/servers", Body()) as lines:
            assert [line async for line in lines] == [b"1"]
    with pytest.raises(PeerCallFailed, match="not yours"):
        async with calls.stream(peer, "/iperf/servers", Body()):
            pass


@pytest.mark.parametrize(("answer", "alive"), [(Reply(200), True), (Reply(503), True), (Drop(), False)])
async def test_a_peer_that_speaks_http_is_alive(peer_agent: FakeApi, peer: PeerAgent, answer: Any, alive: bool):
    peer_agent.on("GET", "/healthz", answer)
    assert await HttpPeerClient("node-1", None).alive(peer, 60.0) is alive


async def test_addresses_of_ipv6_are_called_too():
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"[::1]:{port}".encode() in head
        asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, "::1", 0, family=socket.AF_INET6)
    except OSError:
        assert peer_endpoint(PeerAgent("node-7", "fd00::7", 3333)) == "[fd00::7]:3333"
        return  # this machine has no IPv6 at all
    port = server.sockets[0].getsockname()[1]
    assert await HttpPeerClient("node-1", None).get_json(PeerAgent("node-7", "::1", port), "/status", {}, FAR_S) == {}
    assert asked.is_set()
    server.close()

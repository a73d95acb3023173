"""A fleet on this machine: an API server that knows it, a real agent that is asked, and many that answer it.

The many are real sockets, each on an address of its own in 127.0.0.0/8 and all on one port, as in a cluster. What they
say is what an agent says; the checks behind it are left out.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from tests.kube.conftest import FakeApi, Reply
from tests.plain_http import plain_http

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.fleet import FleetLimits
from muster_agent.fleet.agent_fleet import AgentFleet
from muster_agent.fleet.fanout import LivenessProbe
from muster_agent.fleet.members import DISCOVERY, AgentService, FleetMembers
from muster_agent.http.access import AccessControl
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import CheckAnswer, NodeAnswer
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Verdict
from muster_checks.registry import load_registry
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.nodehealth import PATH as HEALTHS
from muster_kube.nodehealth import AgentIdentity

ASKED = "node-000"  # the real agent
SLICE_LIMIT = 100  # endpoints in one slice, as the controller makes them
TRIES = 20


def address(number: int) -> str:
    return f"127.77.{number // 250}.{number % 250 + 1}"


@dataclass
class Answerer:
    """An agent's /status and /healthz. silent: takes connections and says nothing. asked: connections that brought a
    question; done: those that the asker has closed since, its answer read or given up."""

    node: str
    silent: bool = False
    asked: int = 0
    done: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.asked += 1
                if not self.silent:
                    target = head.split(" ", 2)[1]
                    body = b"ok" if target == "/healthz" else self._status(parse_qs(urlsplit(target).query))
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    await writer.drain()
                await reader.read()
                self.done += 1
        finally:
            writer.close()

    def _status(self, query: dict[str, list[str]]) -> bytes:
        assert query["host"] == [self.node]
        results = tuple(CheckAnswer(check=name, verdict=Verdict.PASS) for name in query["check"][0].split(","))
        answer = NodeAnswer(node=self.node, verdict=Verdict.PASS, results=results)
        return msgspec.json.encode({"nodes": [answer], "summary": {self.node: ["Ok"]}, "runtimeSeconds": 0.01})


@dataclass
class ManyAgents:
    """``answerers`` by node; ``dead``: nodes where nobody listens. client: asks the real one, over ASGI."""

    port: int
    api: FakeApi
    agent: Agent
    app: Any
    client: httpx2.AsyncClient
    answerers: dict[str, Answerer]
    dead: Sequence[str]
    silent: Sequence[str] = field(default_factory=list)


@asynccontextmanager
async def many_agents(
    folder: Path, *, count: int, dead: int = 0, silent: int = 0, probe: LivenessProbe | None = None
) -> AsyncIterator[ManyAgents]:
    """``count`` agents, the asked one and those that are dead or silent included."""
    nodes = [f"node-{number:03}" for number in range(count)]
    gone, mute = nodes[count - dead :], nodes[count - dead - silent : count - dead]
    answerers = {node: Answerer(node, silent=node in mute) for node in nodes[1 : count - dead]}
    places = {node: address(number) for number, node in enumerate(nodes)}
    async with contextlib.AsyncExitStack() as stack:
        port = await _listen_everywhere(stack, answerers, places)
        api = FakeApi()
        _tell_of(api, nodes, places, port)
        await api.start()
        stack.push_async_callback(api.stop)
        config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
        client = await stack.enter_async_context(KubeClient(config, timeout_s=60.0))
        members = FleetMembers(client, ASKED, AgentService("muster", "autopilot-healthchecks"))
        fleet = AgentFleet(ASKED, members, None, FleetLimits(), probe)
        agent = await stack.enter_async_context(_asked_agent(folder))
        app = make_app(agent, AgentMetrics(ASKED, "1"), fleet, AccessControl(None))
        transport = httpx2.ASGITransport(app=app)
        asking = httpx2.AsyncClient(transport=transport, base_url=f"http://{places[ASKED]}:{port}", timeout=None)
        yield ManyAgents(port, api, agent, app, await stack.enter_async_context(asking), answerers, gone, mute)


@asynccontextmanager
async def _asked_agent(folder: Path) -> AsyncIterator[Agent]:
    """A whole agent with the one check dmesg, which reads a kernel log that is a file."""
    kmsg = folder / "kernel.log"
    kmsg.touch()
    local = LocalNode(name=ASKED, view=NodeView(name=ASKED), boot_id="boot")
    dmesg = load_registry(plug_ins=[])["dmesg"]
    check = StreamCheck(dmesg, dmesg.parameters.model_validate({"path": kmsg}), local, None)
    agent = Agent(local, [check], AgentIdentity(pod_uid="pod-1", version="1"))
    reading = asyncio.create_task(check.run())
    try:
        yield agent
    finally:
        await agent.stop()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _listen_everywhere(
    stack: contextlib.AsyncExitStack, answerers: dict[str, Answerer], places: dict[str, str]
) -> int:
    """One port that is free on all the addresses."""
    for _ in range(TRIES):
        listeners: list[socket.socket] = []
        try:
            for node in places:
                port = listeners[0].getsockname()[1] if listeners else 0
                listeners.append(socket.create_server((places[node], port), backlog=256))
        except OSError:
            for listener in listeners:
                listener.close()
            continue
        for node, listener in zip(places, listeners, strict=True):
            if node in answerers:
                server = await asyncio.start_server(answerers[node].serve, sock=listener)
                stack.callback(server.close)
            else:
                listener.close()  # dead, or the asked one, which is not asked by a call
        return int(port)
    raise AssertionError(f"no port is free on {len(places)} addresses of 127.0.0.0/8, {TRIES} times")


def _tell_of(api: FakeApi, nodes: Sequence[str], places: dict[str, str], port: int) -> None:
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    endpoints = [{"addresses": [places[node]], "nodeName": node} for node in nodes]
    slices = [
        {
            "metadata": {"name": f"slice-{start}"},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": endpoints[start : start + SLICE_LIMIT],
        }
        for start in range(0, len(nodes), SLICE_LIMIT)
    ]
    api.on("GET", DISCOVERY, Reply(200, {"versions": [{"version": "v1"}]}))
    api.on("GET", HEALTHS, Reply(200, {"metadata": {}, "items": [{"metadata": {"name": node}} for node in nodes]}))
    listed = Reply(200, {"metadata": {}, "items": slices})
    api.on("GET", f"{DISCOVERY}/v1/namespaces/muster/endpointslices", listed)


@dataclass(frozen=True)
class Timed:
    """seconds: from the question to the end of the answer; first_s: to its first byte; verdicts: by node."""

    seconds: float
    first_s: float
    verdicts: dict[str, str]


async def time_one_call(folder: Path, *, count: int = 200, dead: int = 5, silent: int = 5) -> Timed:
    """/status?check=dmesg over a whole fleet through one agent, over real sockets on both sides; for the bench."""
    import uvicorn

    from muster_kube.http.client_timeouts import Impatient

    async with many_agents(folder, count=count, dead=dead, silent=silent) as fleet:
        server = uvicorn.Server(
            uvicorn.Config(fleet.app, http=Impatient, lifespan="off", log_config=None, access_log=False)
        )
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with plain_http(None) as client:
                started = time.monotonic()
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/status"
                async with client.stream("GET", url, params={"check": "dmesg", "format": "json"}) as answer:
                    assert answer.status_code == 200, await answer.aread()
                    first_s, body = 0.0, bytearray()
                    async for chunk in answer.aiter_raw():
                        first_s = first_s or time.monotonic() - started
                        body += chunk
                seconds = time.monotonic() - started
        finally:
            server.should_exit = True
            await serving
    nodes = msgspec.json.decode(body)["nodes"]
    return Timed(seconds, first_s, {node["node"]: node["verdict"] for node in nodes})

"""Clients that open connections and ask nothing, or ask for what takes long: others are answered."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send
from tests.loop_time import LoopTime

from muster_kube.http.connection_guard import ConnectionLimits
from muster_kube.http.server import listen, make_server
from muster_kube.http.tls import load_key_pair, server_context
from muster_kube.process.lifetime import QuietServer
from muster_kube.webhook.key_pairs import make_key_pair

LIMITS = ConnectionLimits(connections=12, per_address=8)
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


class Served:
    """A server of every part's kind. /slow is answered once ``may_answer`` is set."""

    def __init__(self, trust: ssl.SSLContext | None) -> None:
        self.trust = trust
        self.may_answer = asyncio.Event()
        self.asked = 0
        self.listener = listen("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.server: QuietServer | None = None
        self._held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.asked += 1
            await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect(self, *, source: str = "127.0.0.1", silent: bool = False) -> asyncio.StreamReader:
        """silent: without a TLS handshake."""
        tls = None if silent else self.trust
        opened = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, local_addr=(source, 0))
        self._held.append(opened)
        return opened[0]

    async def ask(self, path: str, *, source: str = "127.0.0.1") -> asyncio.StreamReader:
        reader = await self.connect(source=source)
        self._held[-1][1].write(GET % path.encode())
        return reader

    async def status(self, path: str, *, source: str = "127.0.0.1") -> bytes:
        return (await (await self.ask(path, source=source)).readline()).split(b" ")[1]

    async def has_asked(self, number: int) -> None:
        while self.asked < number:  # noqa: ASYNC110 - a count has no event of its own
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self.may_answer.set()
        for _, writer in self._held:
            writer.transport.abort()


async def closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


@pytest.fixture(params=["http", "https"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    context = trust = None
    if request.param == "https":
        pair = make_key_pair(["127.0.0.1"], time.time())
        context = server_context()
        load_key_pair(context, pair.certificate, pair.key)
        trust = ssl.create_default_context(cadata=pair.authority.decode())
    made = Served(trust)
    server = make_server(made, limits=LIMITS, tls=context)
    serving = asyncio.create_task(server.serve(sockets=[made.listener]))
    yield made
    await made.stop()
    server.should_exit = True
    await serving


async def test_an_address_that_has_too_many_loses_those_that_have_been_idle_longest(served: Served) -> None:
    silent = [await served.connect(silent=True) for _ in range(3 * LIMITS.per_address)]
    assert await served.status("/") == b"200"
    async with asyncio.timeout(60):
        assert all([await closed(each) for each in silent[: 2 * LIMITS.per_address]])


async def test_many_addresses_together_lose_those_of_the_address_that_has_most(served: Served) -> None:
    kept = await served.connect(source="127.0.0.9", silent=True)
    for number in range(3 * LIMITS.connections):
        await served.connect(source=f"127.0.1.{number % 3 + 1}", silent=True)
    assert await served.status("/") == b"200"
    assert not kept.at_eof()


async def test_requests_in_progress_are_kept_and_leave_room_for_probes(served: Served) -> None:
    slow = [await served.ask("/slow") for _ in range(LIMITS.requests_per_address)]
    await served.has_asked(len(slow))
    assert await served.status("/slow") == b"503", "this many are too many for one address"
    others = [await served.ask("/slow", source="127.0.0.2") for _ in range(LIMITS.requests - len(slow))]
    await served.has_asked(LIMITS.requests)
    assert await served.status("/slow", source="127.0.0.3") == b"503", "this many are too many in all"
    for _ in range(2 * LIMITS.connections):
        await served.connect(silent=True)
    for path in ("/healthz", "/readyz"):
        assert await served.status(path) == b"200"
    served.may_answer.set()
    for reader in (*slow, *others):
        assert b" 200 " in await reader.readline()


async def test_a_handshake_has_a_limit(served: Served, loop_time: LoopTime) -> None:
    silent = await served.connect(silent=True)
    await served.status("/")
    await loop_time.passes(60)
    async with asyncio.timeout(60):
        assert await closed(silent)


async def test_one_line_a_minute_tells_of_closed_connections(
    served: Served, caplog: pytest.LogCaptureFixture, loop_time: LoopTime
) -> None:
    async def press() -> int:
        caplog.clear()
        for _ in range(4 * LIMITS.connections):
            await served.connect(silent=True)
        await served.status("/")
        return len([each for each in caplog.records if each.levelno >= logging.WARNING])

    assert await press() == 1
    assert await press() == 0
    await loop_time.passes(61)
    assert await press() == 1


async def test_invalid_requests_are_one_line_a_minute(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        reader = await served.connect()
        served._held[-1][1].write(b"\x00\r\n\r\n")
        await reader.readline()
    assert len(caplog.records) <= 1


def test_the_limits_leave_files_for_muster_itself() -> None:
    few = ConnectionLimits().within(1024)
    assert 3 * few.connections + 256 <= 1024
    assert few.requests < few.connections
    assert few.requests_per_address < few.per_address < few.connections
    assert ConnectionLimits().within(1 << 20) == ConnectionLimits()


def test_a_process_raises_its_limit_of_open_files() -> None:
    code = (
        "import resource as r; from muster_kube.process.open_files import raise_open_files_limit as f; "
        "h = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (1024, h)); print(f())"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raised = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert int(raised.stdout) == min(hard, 1 << 20)


async def test_accepting_goes_on_after_the_system_had_no_descriptor(
    served: Served, caplog: pytest.LogCaptureFixture, loop_time: LoopTime
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    client.setblocking(False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    try:
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", served.port))
        for _ in range(1000):
            await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await loop_time.passes(2)
    assert await served.status("/") == b"200"
    client.close()
    assert len(caplog.records) <= 1

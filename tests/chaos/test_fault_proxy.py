"""The proxy of `make chaos` passes everything on in calm weather, and does in bad weather what its name says."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.raw_proxy import RawProxy, RawWeather
from tests.chaos.weather import FAULTS, Weather

from muster_sandbox.controlplane.certificates import Authority

EVENT = b'{"type":"ADDED"}\n'
BODY = b"x" * 100_000


class Server:
    """Speaks as much HTTP as is needed. asked: request lines. more: each item is a further event of all watches."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.more: asyncio.Queue[bytes] = asyncio.Queue()
        self.connections: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def close(self) -> None:
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections)
        await asyncio.sleep(0)  # until the transports have ended

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await self._head(reader):
            self.asked.append(head)
            if "watch=1" in head:
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                event = EVENT
                while event:
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await writer.drain()
                    event = await self.more.get()
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY))
                await writer.drain()

    async def _head(self, reader: asyncio.StreamReader) -> str:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return ""
        for line in lines:
            if line.lower().startswith("content-length:"):
                await reader.readexactly(int(line.partition(":")[2]))
        return lines[0]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, FaultProxy, httpx2.AsyncClient, list[int]]]:
    """The last: the statuses that the proxy has recorded."""
    server, statuses = Server(), []
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    proxy = FaultProxy(
        ("127.0.0.1", listening.sockets[0].getsockname()[1]),
        random.Random(1),
        record=lambda _method, _target, _body, status, _at: statuses.append(status),
    )
    await proxy.start()
    url = f"http://127.0.0.1:{proxy.port}"
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as http:
        yield server, proxy, http, statuses
    await proxy.close()
    listening.close()
    await server.close()


async def test_a_certificate_expires_and_is_renewed_while_the_proxy_runs(tmp_path: Path) -> None:
    authority = Authority("chaos")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    made = {}
    for valid in (timedelta(days=1), timedelta(minutes=-1)):
        issued = authority.server("api", ["127.0.0.1"], valid)
        (tmp_path / "api.pem").write_bytes(issued.certificate + issued.key)
        made[valid > timedelta()] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made[valid > timedelta()].load_cert_chain(tmp_path / "api.pem")
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    async with serving() as (_, proxy, _, _), httpx2.AsyncClient(verify=trust, trust_env=False) as http:
        url = f"https://127.0.0.1:{proxy.port}/a"
        for _ in range(2):
            proxy.set_certificate(made[True])
            assert (await http.get(url)).content == BODY
            assert (await http.get(url)).content == BODY
            proxy.set_certificate(made[False])
            with pytest.raises(httpx2.TransportError):
                await http.get(url)


async def test_in_calm_weather_everything_is_passed_on_over_one_connection() -> None:
    async with serving() as (server, proxy, http, statuses):
        for _ in range(3):
            assert (await http.patch("/a", content=b"{}")).content == BODY
        assert (server.asked, statuses) == (["PATCH /a HTTP/1.1"] * 3, [200] * 3)
        assert proxy.link.met == 0


@pytest.mark.parametrize(
    ("weather", "method", "status", "reached"),
    [
        (Weather.DELAYS, "GET", 200, 1),
        (Weather.DUPLICATES, "GET", 200, 2),
        (Weather.DUPLICATES, "PATCH", 200, 1),
        (Weather.CUTS, "GET", 0, 0),
        (Weather.LOSES, "PATCH", 0, 1),
        (Weather.TEARS, "GET", 0, 1),
        (Weather.THROTTLES, "GET", 200, 1),
        (Weather.CONFLICTS, "PATCH", 409, 0),
        (Weather.CONFLICTS, "GET", 200, 1),
        (Weather.LIMITS, "GET", 429, 0),
        (Weather.FAILS, "PATCH", 500, 0),
    ],
)
async def test_what_a_request_meets(weather: Weather, method: str, status: int, reached: int) -> None:
    async with serving() as (server, proxy, http, _):
        proxy.set_weather(weather)
        try:
            answer = await http.request(method, "/a")
            found = answer.status_code
        except httpx2.TransportError:
            found = 0
        assert (found, len(server.asked)) == (status, reached)
        if found == 200:
            assert answer.content == BODY
        if found == 429:
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("weather", "ends", "last"),
    [
        (Weather.EXPIRES, True, 410),
        (Weather.ENDS_WATCHES, False, None),
        (Weather.MUTES_WATCHES, False, None),
    ],
)
async def test_what_a_watch_meets(weather: Weather, ends: bool, last: int | None) -> None:
    async with serving() as (server, proxy, http, _), http.stream("GET", "/a?watch=1") as answer:
        lines = answer.aiter_lines()
        assert json.loads(await anext(lines)) == {"type": "ADDED"}
        proxy.set_weather(weather)
        server.more.put_nowait(EVENT)  # muted: it never comes
        if weather is Weather.MUTES_WATCHES:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(lines)
            proxy.set_weather(Weather.CALM)
            return
        try:
            code = json.loads(await anext(lines))["object"]["code"]
            await anext(lines)
        except StopAsyncIteration:
            assert ends
            assert code == last
        except httpx2.TransportError:
            assert not ends


def test_every_fault_is_tested() -> None:
    marks = [*test_what_a_request_meets.pytestmark, *test_what_a_watch_meets.pytestmark]  # type: ignore[attr-defined]
    assert {row[0] for mark in marks for row in mark.args[1]} == set(FAULTS)


async def test_a_proxy_of_bytes_uses_the_server_that_accepts_and_cuts_when_told() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(await reader.read(5))
            await writer.drain()
        writer.close()

    closed = await asyncio.start_server(echo, "127.0.0.1", 0)
    nobody = closed.sockets[0].getsockname()[1]
    closed.close()
    listening = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = RawProxy([("127.0.0.1", nobody), ("127.0.0.1", listening.sockets[0].getsockname()[1])])
    await proxy.start()
    told = {}
    for weather in (RawWeather.CALM, RawWeather.REFUSES, RawWeather.CUTS):
        proxy.weather = weather
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        try:
            told[weather] = await reader.read()
        except ConnectionError:
            told[weather] = b""
        writer.close()
    assert told == {RawWeather.CALM: b"hello", RawWeather.REFUSES: b"", RawWeather.CUTS: b""}
    await proxy.close()
    listening.close()

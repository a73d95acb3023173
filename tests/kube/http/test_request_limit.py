"""More callers than an agent has room for: the kubelet is answered all the same."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from muster_kube.http.connection_guard import ConnectionLimits
from muster_kube.http.server import listen, make_server
from muster_kube.http.size_limit import HEADERS_LIMIT, LONG_AT_ONCE

AT_ONCE = ConnectionLimits().requests_per_address


class Service:
    """The agent's server around a /status that says nothing until ``may_answer``."""

    def __init__(self) -> None:
        self.asked = 0
        self._open: list[asyncio.StreamWriter] = []
        self.may_answer = asyncio.Event()
        self.listener = listen("127.0.0.1", 0)
        routes = [Route("/status", self._status), Route("/healthz", self._ok), Route("/readyz", self._ok)]
        self.server: uvicorn.Server = make_server(Starlette(routes=routes))

    async def _status(self, _request: Request) -> PlainTextResponse:
        self.asked += 1
        await self.may_answer.wait()
        return PlainTextResponse("done\n")

    async def _ok(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    async def call(self, path: str) -> asyncio.StreamReader:
        """The answer, once it comes; an empty path asks nothing."""
        reader, writer = await asyncio.open_connection(*self.listener.getsockname()[:2])
        self._open.append(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() if path else b"")
        return reader

    async def first_line(self, path: str) -> bytes:
        return await (await self.call(path)).readline()

    async def stop(self) -> None:
        self.may_answer.set()
        for writer in self._open:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._open), return_exceptions=True)
        self.server.should_exit = True


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    serving = asyncio.create_task(made.server.serve(sockets=[made.listener]))
    yield made
    await made.stop()
    await serving


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_the_kubelet_is_answered_whatever_the_number_of_callers(service: Service, path: str):
    waiting = [await service.call("/status") for _ in range(AT_ONCE)]
    while service.asked < AT_ONCE:  # noqa: ASYNC110 - a count has no event of its own
        await asyncio.sleep(0)
    assert b" 503 " in await service.first_line("/status")
    assert b" 200 " in await service.first_line(path)
    service.may_answer.set()
    assert all([b" 200 " in await reader.readline() for reader in waiting])
    assert b" 200 " in await service.first_line("/status"), "there is room again"
    assert service.asked == AT_ONCE + 1


async def test_connections_that_say_nothing_keep_nobody_out(service: Service):
    for _ in range(AT_ONCE):
        await service.call("")
    assert b" 200 " in await service.first_line("/healthz")


async def test_only_a_few_long_queries_wait_for_their_answer(service: Service):
    """Each is a megabyte, for as long as the checks that it asks for take."""
    long = "/status?host=" + "a" * HEADERS_LIMIT
    waiting = [await service.call(long) for _ in range(LONG_AT_ONCE)]
    while service.asked < LONG_AT_ONCE:  # noqa: ASYNC110 - a count has no event of its own
        await asyncio.sleep(0)
    assert b" 503 " in await service.first_line(long)
    service.may_answer.set()
    assert all([b" 200 " in await reader.readline() for reader in waiting])
    assert b" 200 " in await service.first_line(long), "there is room again"

"""Clients that hang: whatever they do with their connections, others are served."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn

from muster_agent.patience import Impatient

LIMIT = 8


class Patient(Impatient):
    """Its limits are passed by the test, never by a machine that is slow."""

    request_s = 600.0
    answer_s = 600.0


KEEP_ALIVE_S = 600
LIMIT_S = Patient.request_s + KEEP_ALIVE_S + 1  # beyond any of them


class Service:
    """A server of the agent's kind. taken: requests so far; /slow is answered, /endless ends, once ``may_answer``."""

    def __init__(self) -> None:
        self.port = 0
        self.taken = 0
        self.may_answer = asyncio.Event()

    async def answer(self, scope, _receive, send):
        self.taken += 1
        if scope["path"] == "/slow":
            await self.may_answer.wait()
        body = b"x" * (8 << 20 if scope["path"] == "/large" else 2)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        if scope["path"] == "/endless":
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            await self.may_answer.wait()
        await send({"type": "http.response.body", "body": body})

    async def has_taken(self, requests: int) -> None:
        while self.taken < requests:  # noqa: ASYNC110 - a count has no event of its own
            await asyncio.sleep(0)


@pytest.fixture
async def service():
    made = Service()
    listener = socket.create_server(("127.0.0.1", 0))
    made.port = listener.getsockname()[1]
    config = uvicorn.Config(
        made.answer, interface="asgi3", http=Patient, lifespan="off", log_config=None, limit_concurrency=LIMIT
    )
    config.timeout_keep_alive = KEEP_ALIVE_S
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # signals are pytest's
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield made
    server.should_exit = True
    await serving


async def ask(port: int, path: str = "/") -> bytes:
    """The status line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line


def connect(port: int) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that an answer not read stays with the server
    held.connect(("127.0.0.1", port))
    return held


@pytest.mark.parametrize(
    ("said", "limits"),
    [(b"", 1), (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", 1), (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", 2)],
    ids=["says nothing", "says half", "takes no answer"],
)
async def test_connections_that_hang_make_room(service, loop_time, said, limits):
    held = [connect(service.port) for _ in range(LIMIT - 1)]
    for one in held:
        one.sendall(said)
    await service.has_taken(len(held) if limits > 1 else 0)
    assert b"503" in await ask(service.port), "this many are too many"
    for _ in range(limits):  # an answer has a limit of its own
        await loop_time.passes(LIMIT_S)
    assert b"200" in await ask(service.port)
    for one in held:
        one.close()


async def test_a_second_request_that_never_ends_makes_room(service, loop_time):
    held = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(LIMIT - 1)]
    for reader, writer in held:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.write(b"GET / HT")
    assert b"503" in await ask(service.port), "this many are too many"
    await loop_time.passes(LIMIT_S)
    assert b"200" in await ask(service.port)
    for _, writer in held:
        writer.close()


async def test_an_answer_that_takes_its_time_is_waited_for(service, loop_time):
    asking = asyncio.create_task(ask(service.port, "/slow"))
    await service.has_taken(1)
    await loop_time.passes(Patient.request_s + 1)  # longer than a request may take, shorter than both together
    service.may_answer.set()
    assert b"200" in await asking


async def test_an_answer_that_never_ends_is_given_up(service, loop_time):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await reader.readline()
    for _ in range(2):  # for the request, and for the answer
        await loop_time.passes(LIMIT_S)
    with contextlib.suppress(ConnectionResetError):
        await reader.read()  # to the end of the connection
    writer.close()
    service.may_answer.set()  # and the server may stop


async def test_a_connection_that_is_used_stays(service, loop_time):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"\r\n\r\nxx")
        await loop_time.passes(KEEP_ALIVE_S - 1)
    writer.close()

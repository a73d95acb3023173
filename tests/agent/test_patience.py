"""Clients that hang: whatever they do with their connections, others are served."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn

from muster_agent.patience import Impatient

LIMIT = 8


class Hurried(Impatient):
    request_s = 0.2
    answer_s = 0.2


async def answer(scope, _receive, send):
    if scope["path"] == "/slow":
        await asyncio.sleep(0.3)  # longer than a request may take, shorter than both together
    body = b"x" * (8 << 20 if scope["path"] == "/large" else 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port():
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(answer, http=Hurried, lifespan="off", log_config=None, limit_concurrency=LIMIT)
    config.timeout_keep_alive = 0.1  # type: ignore[assignment] # seconds; whole ones would make slow tests
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # signals are pytest's
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


async def ask(port: int, path: str = "/") -> bytes:
    """The status line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line


async def until_served(port: int) -> None:
    async with asyncio.timeout(10):
        while b"200" not in await ask(port):  # noqa: ASYNC110 - what is waited for is the server
            await asyncio.sleep(0.05)


def connect(port: int) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that an answer not read stays with the server
    held.connect(("127.0.0.1", port))
    return held


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["says nothing", "says half", "takes no answer"],
)
async def test_connections_that_hang_make_room(port, said):
    held = [connect(port) for _ in range(LIMIT - 1)]
    for one in held:
        one.sendall(said)
    await asyncio.sleep(0.05)
    assert b"503" in await ask(port), "this many are too many"
    await until_served(port)
    for one in held:
        one.close()


async def test_a_second_request_that_never_ends_makes_room(port):
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMIT - 1)]
    for reader, writer in held:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.write(b"GET / HT")
    await asyncio.sleep(0.05)
    assert b"503" in await ask(port), "this many are too many"
    await until_served(port)
    for _, writer in held:
        writer.close()


async def test_an_answer_that_takes_its_time_is_waited_for(port):
    assert b"200" in await ask(port, "/slow")

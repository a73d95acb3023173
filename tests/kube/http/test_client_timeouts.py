"""Clients that hang: whatever they do with their connections, others are served."""

import asyncio
import contextlib
import logging
import socket

import pytest
import uvicorn

from muster_kube.http.client_timeouts import Impatient
from muster_kube.http.size_limit import HEADERS_LIMIT, LINE_LIMIT, LONG_AT_ONCE, _long

LIMIT = 16
NODE = b"x" * 10_000
MANY = 3_000


class Patient(Impatient):
    """Its limits are passed by the test, never by a machine that is slow."""

    request_s = 600.0
    answer_s = 600.0


KEEP_ALIVE_S = 600
LIMIT_S = Patient.request_s + KEEP_ALIVE_S + 1  # beyond any of them


class Service:
    """A server of the agent's kind. taken: requests so far; /slow is answered, /endless ends, once ``may_answer``;
    /nodes sends many, ``sent`` of them so far, and sets ``ended``."""

    def __init__(self) -> None:
        self.port = 0
        self.taken = 0
        self.sent = 0
        self.ended = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def answer(self, scope, _receive, send):
        self.taken += 1
        if scope["path"] == "/slow":
            await self.may_answer.wait()
        if scope["path"] == "/nodes":
            await self.send_nodes(send)
            return
        body = b"x" * (8 << 20 if scope["path"] == "/large" else 2)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        if scope["path"] == "/endless":
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            await self.may_answer.wait()
        await send({"type": "http.response.body", "body": body})

    async def send_nodes(self, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while self.sent < MANY:
                await send({"type": "http.response.body", "body": NODE, "more_body": True})
                self.sent += 1
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.ended.set()

    async def stands_still(self) -> None:
        """Nothing more is taken from it: what fits between it and its client is full."""
        before = -1
        while before != self.sent:
            before = self.sent
            for _ in range(1000):
                await asyncio.sleep(0)

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


INVALID_BODY = b"no chunk\r\n"


@pytest.mark.parametrize("when", ["before its answer", "during its answer", "after its answer"])
async def test_a_request_whose_body_is_invalid_ends_without_an_error(service, caplog, when):
    path = "/endless" if when == "during its answer" else "/"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    if when == "before its answer":
        writer.write(head + INVALID_BODY)
        assert b"400" in await reader.readline()
    else:
        writer.write(head)
        assert b"200" in await reader.readline()
        if when == "after its answer":
            await reader.readuntil(b"\r\n\r\nxx")  # it did not wait for the body
        writer.write(INVALID_BODY)
    with contextlib.suppress(ConnectionResetError):
        await reader.read()  # until the server closes the connection
    service.may_answer.set()
    assert b"200" in await ask(service.port)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    writer.close()


async def test_an_answer_that_takes_its_time_is_waited_for(service, loop_time):
    asking = asyncio.create_task(ask(service.port, "/slow"))
    await service.has_taken(1)
    await loop_time.passes(Patient.request_s + 1)  # longer than a request may take, shorter than both together
    service.may_answer.set()
    assert b"200" in await asking


async def test_an_answer_whose_next_part_takes_long_is_waited_for(service, loop_time):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await reader.readline()
    for _ in range(5):
        await loop_time.passes(LIMIT_S)
    service.may_answer.set()
    await reader.readuntil(b"\r\n\r\nxx")
    writer.close()


async def test_who_stops_reading_in_the_middle_of_a_stream_is_dropped_and_what_is_sent_does_not_pile_up(
    service, loop_time
):
    held = connect(service.port)
    held.sendall(b"GET /nodes HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await asyncio.to_thread(held.recv, 100)
    await service.stands_still()
    assert service.sent < MANY, "no more is made than the client takes"
    for _ in range(2):  # at the first look it may just have stopped
        await loop_time.passes(LIMIT_S)
    await service.ended.wait()
    held.close()


async def test_who_reads_slowly_but_reads_gets_the_whole_stream(service, loop_time):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET /nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    taken = 0
    for _ in range(5):
        until = min(service.sent + 50, MANY)  # more than the server holds for it
        while service.sent < until:
            taken += len(await reader.read(1 << 16))
        await loop_time.passes(LIMIT_S)
    while chunk := await reader.read(1 << 20):
        taken += len(chunk)
    assert taken > MANY * len(NODE)
    writer.close()


async def test_a_body_that_never_comes_makes_room(service, loop_time):
    held = connect(service.port)
    held.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
    await service.has_taken(1)
    await loop_time.passes(LIMIT_S)
    assert await asyncio.to_thread(held.recv, 100) == b""
    held.close()
    service.may_answer.set()  # and the server may stop


async def test_a_query_of_ten_thousand_nodes_is_taken(service):
    names = ",".join(f"ip-10-128-6-{n}.eu-central-1.compute.internal" for n in range(10_000))
    assert len(names) > 400_000
    assert b"200" in await ask(service.port, f"/?host={names}")


async def test_a_query_that_is_too_long_is_refused(service):
    assert b"414" in await ask(service.port, "/?host=" + "a" * LINE_LIMIT)


async def test_headers_without_end_are_refused(service):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_LIMIT // 6 + 1))
    assert b"431" in await reader.readline()
    writer.close()


async def test_only_a_few_long_queries_are_held_at_a_time(service, loop_time):
    held = []
    for _ in range(LONG_AT_ONCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"GET /?host=" + b"a" * (HEADERS_LIMIT + 1))
        held.append((reader, writer))
    while len(_long) < LONG_AT_ONCE:  # noqa: ASYNC110 - a count has no event of its own
        await asyncio.sleep(0)
    assert b"503" in await ask(service.port, "/?host=" + "a" * (HEADERS_LIMIT + 1))
    await loop_time.passes(LIMIT_S)
    for reader, writer in held:
        assert await reader.read() == b""
        writer.close()
    assert b"200" in await ask(service.port, "/?host=" + "a" * (HEADERS_LIMIT + 1))


async def test_a_connection_that_is_used_stays(service, loop_time):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"\r\n\r\nxx")
        await loop_time.passes(KEEP_ALIVE_S - 1)
    writer.close()

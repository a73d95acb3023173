"""A request is one piece; a server that accepts and then stays silent costs no socket beyond the calls under way."""

import asyncio
import contextlib
import socket
import ssl
import time

import httpcore2
import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Unreachable
from muster_kube.api.transport import RequestStream
from muster_kube.http.tls import load_key_pair, server_context
from muster_kube.webhook.key_pairs import make_key_pair

TRIES = 5


async def test_a_handshake_that_is_given_up_leaves_no_socket_open() -> None:
    begun = ended = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal begun, ended
        if await reader.read(1):  # the client has come as far as the handshake
            begun += 1
            with contextlib.suppress(ConnectionError):
                await reader.read()  # to the end: the client's socket is closed
            ended += 1
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = ClusterConfig(origin="test", server=f"https://127.0.0.1:{port}", insecure_skip_tls_verify=True)
    async with server, KubeClient(config, timeout_s=0.1) as client, asyncio.timeout(60):
        while begun < TRIES:
            with pytest.raises(Unreachable):
                await client.get("/version")
        while ended < begun:  # noqa: ASYNC110 - a count has no event of its own
            await asyncio.sleep(0.01)


class Peer(httpcore2.AsyncNetworkStream):
    """Notes what is written to it. error: of each write."""

    def __init__(self, answer: bytes, error: Exception | None = None) -> None:
        self.pieces: list[bytes] = []
        self._answer = answer
        self._error = error

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._answer

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.pieces.append(buffer)
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None: ...


async def test_a_request_is_sent_in_one_piece_before_its_answer_is_read() -> None:
    peer = Peer(b"answer")
    stream = RequestStream(peer, None)
    for request in (b"1", b"2"):
        await stream.write(b"head" + request)
        await stream.write(b"body" + request)
        assert await stream.read(100) == b"answer"
    assert await stream.read(100) == b"answer"
    assert peer.pieces == [b"head1body1", b"head2body2"]


async def test_a_large_body_is_sent_while_it_is_made() -> None:
    peer = Peer(b"answer")
    stream = RequestStream(peer, None)
    for _ in range(10):
        await stream.write(b"x" * 30_000)
    await stream.read(100)
    assert len(peer.pieces) == 4
    assert b"".join(peer.pieces) == b"x" * 300_000


async def test_the_answer_of_a_server_that_takes_no_more_is_read() -> None:
    stream = RequestStream(Peer(b"HTTP/1.1 429", httpcore2.WriteError("closed")), None)
    await stream.write(b"head")
    assert await stream.read(100) == b"HTTP/1.1 429"


async def test_over_tls_too_a_request_is_one_piece() -> None:
    context, pair = server_context(), make_key_pair(["127.0.0.1"], time.time())
    load_key_pair(context, pair.certificate, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def first_record() -> bytes:
            raw, _ = listener.accept()
            raw.settimeout(60)
            with context.wrap_socket(raw, server_side=True) as peer:
                record = peer.recv(1 << 16)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                return record

        serving = asyncio.create_task(asyncio.to_thread(first_record))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        config = ClusterConfig(origin="test", server=url, insecure_skip_tls_verify=True)
        async with KubeClient(config, timeout_s=60) as client:
            await client.patch("/api/v1/nodes/n1", {"spec": 1})
            record = await serving
    assert record.startswith(b"PATCH /api/v1/nodes/n1 ")
    assert record.endswith(b'\r\n\r\n{"spec":1}')


class Records(httpcore2.AsyncNetworkStream):
    """A TLS connection in memory. sent: each is one record."""

    def __init__(self, *sent: bytes) -> None:
        context, pair = server_context(), make_key_pair(["127.0.0.1"], time.time())
        load_key_pair(context, pair.certificate, pair.key)
        self._inward = inward = ssl.MemoryBIO()
        outward = ssl.MemoryBIO()
        trusting = ssl.create_default_context(cadata=pair.authority.decode())
        self.tls = trusting.wrap_bio(inward, outward, server_hostname="127.0.0.1")
        self._peer = context.wrap_bio(outward, inward, server_side=True)
        self.reads = 0
        for end in (self.tls, self._peer, self.tls, self._peer):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        for each in sent:
            self._peer.write(each)

    def spoil_the_last(self) -> None:
        data = self._inward.read()
        self._inward.write(data[:-1] + bytes([data[-1] ^ 1]))

    def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._peer.unwrap()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.reads += 1
        try:
            return self.tls.read(max_bytes)
        except ssl.SSLZeroReturnError:
            return b""

    async def aclose(self) -> None: ...


async def test_all_records_that_have_arrived_are_one_read() -> None:
    records = Records(b"one,", b"two,", b"three")
    stream = RequestStream(records, None, records.tls)
    assert await stream.read(100) == b"one,two,three"
    assert records.reads == 1


@pytest.mark.parametrize("limit", [1, 4, 5, 12])
async def test_a_read_takes_no_more_than_asked_and_nothing_is_lost_at_the_end(limit: int) -> None:
    records = Records(b"one,", b"two,", b"three")
    records.end()
    stream = RequestStream(records, None, records.tls)
    pieces = []
    while piece := await stream.read(limit):
        pieces.append(piece)
    assert b"".join(pieces) == b"one,two,three"
    assert max(map(len, pieces)) == limit


async def test_a_record_that_is_broken_is_an_error_after_what_came_before() -> None:
    records = Records(b"one,", b"two,", b"three")
    records.spoil_the_last()
    stream = RequestStream(records, None, records.tls)
    assert await stream.read(100) == b"one,two,"
    assert stream.get_extra_info("is_readable"), "no request is sent over it"
    for _ in range(2):
        with pytest.raises(httpcore2.ReadError):
            await stream.read(100)
    assert records.reads == 1


async def test_a_connection_at_rest_that_the_server_closed_or_that_is_closed_is_told_apart() -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        inner = await httpcore2.AnyIOBackend().connect_tcp(*server.sockets[0].getsockname())
        stream = RequestStream(inner, None)
        there = await accepted
        assert not stream.get_extra_info("is_readable")
        there.close()
        while not stream.get_extra_info("is_readable"):  # noqa: ASYNC110 - the kernel tells of no such event
            await asyncio.sleep(0.01)
        await stream.aclose()
        assert stream.get_extra_info("is_readable")

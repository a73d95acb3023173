"""A server that accepts and then stays silent costs no socket beyond the calls under way; a request is sent at once."""

import asyncio
import contextlib

import httpcore2
import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Unreachable
from muster_kube.api.transport import JOINED_BYTES, JoinedWrites

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


class _Recording(httpcore2.AsyncNetworkStream):
    """Answers each read with ``answer``. broken: writes fail, as on a connection that the server has closed."""

    def __init__(self, *, broken: bool = False) -> None:
        self.sent: list[bytes] = []
        self._broken = broken

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.sent.append(buffer)
        if self._broken:
            raise httpcore2.WriteError

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return b"answer"

    async def aclose(self) -> None:
        return None


async def test_head_and_body_of_a_request_are_sent_together_before_the_answer_is_read() -> None:
    inner = _Recording()
    stream = JoinedWrites(inner)
    for _ in range(2):
        await stream.write(b"head ")
        await stream.write(b"body")
        await stream.write(b"")
        assert await stream.read(100) == b"answer"
        assert await stream.read(100) == b"answer"
    assert inner.sent == [b"head body", b"head body"]


async def test_a_long_body_is_not_kept_in_memory() -> None:
    inner = _Recording()
    stream = JoinedWrites(inner)
    await stream.write(b"head")
    for _ in range(8):
        await stream.write(bytes(JOINED_BYTES // 2))
    assert len(inner.sent) == 4
    await stream.read(100)
    assert sum(map(len, inner.sent)) == 4 + 4 * JOINED_BYTES


async def test_an_answer_that_came_before_the_server_closed_the_connection_is_read() -> None:
    stream = JoinedWrites(_Recording(broken=True))
    await stream.write(b"head")
    assert await stream.read(100) == b"answer"

"""A server that accepts and then stays silent costs no socket beyond the calls under way."""

import asyncio
import contextlib

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Unreachable

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

"""A server that accepts and then stays silent costs no socket beyond the calls under way."""

import asyncio
from pathlib import Path

import pytest

from muster_kube.client import KubeClient
from muster_kube.config import ClusterConfig
from muster_kube.errors import Unreachable

TRIES = 5


def open_sockets() -> int:
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]  # one was the listing itself
    return sum(1 for path in links if str(path.readlink()).startswith("socket:"))


async def test_a_handshake_that_is_given_up_leaves_no_socket_open() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = ClusterConfig(origin="test", server=f"https://127.0.0.1:{port}", insecure_skip_tls_verify=True)
    async with server, KubeClient(config, timeout_s=0.1) as client:
        before = open_sockets()
        for _ in range(TRIES):
            with pytest.raises(Unreachable):
                await client.get("/version")
        await asyncio.sleep(0)
        assert len(accepted) == TRIES  # all of them came as far as the handshake
        ours = open_sockets() - before - len(accepted)  # the server's ends are in this process too
        assert ours == 0
        for writer in accepted:
            writer.close()

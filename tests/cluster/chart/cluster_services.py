"""What a cluster has at its Service addresses, in a network namespace of a test: the API server and the DNS.

``python cluster_services.py NAMESPACE KUBECONFIG`` says ``listening`` and goes on until its standard input ends. Its
sockets are in NAMESPACE, the process itself is outside, where the API server listens on loopback.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from tests.cluster.chart.cluster_network import API_SERVER, DNS

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.realnode.cluster_dns import ServiceNames, build_reply, parse_query

_CLONE_NEWNET = 0x40000000  # setns(2)
_CHUNK = 1 << 16


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets that are made here belong to ``namespace``. For a process of one thread; os.setns comes with 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}", namespace)

    with open("/proc/self/ns/net") as home, open(f"/run/netns/{namespace}") as there:  # noqa: PTH123 - held open
        enter(there.fileno())
        try:
            yield
        finally:
            enter(home.fileno())


class Relay:
    """What comes to the API server's Service goes on to where it listens, as kube-proxy would have it."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()


class Names(asyncio.DatagramProtocol):
    def __init__(self, names: ServiceNames) -> None:
        self._names = names
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.create_task(self._answer(data, addr))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, query: bytes, asker: tuple[str, int]) -> None:
        if (question := parse_query(query)) is not None:
            self._transport.sendto(build_reply(query, question, await self._names.addresses(question.name)), asker)


async def main(namespace: str, kubeconfig: Path) -> None:
    with inside(namespace):
        listener = socket.create_server((API_SERVER, 443))
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((DNS, 53))
    config = load_config(kubeconfig)
    loop = asyncio.get_running_loop()
    async with KubeClient(config, timeout_s=30.0) as client:
        preferred = (await client.get("/apis/discovery.k8s.io"))["preferredVersion"]["groupVersion"]
        place = urlsplit(config.server)
        await asyncio.start_server(Relay(str(place.hostname), int(place.port or 443)).serve, sock=listener)
        await loop.create_datagram_endpoint(lambda: Names(ServiceNames(client, f"/apis/{preferred}")), sock=names)
        print("listening", flush=True)
        await loop.run_in_executor(None, sys.stdin.read)  # ends with whoever has started this


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

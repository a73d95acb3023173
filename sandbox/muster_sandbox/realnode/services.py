"""``python -m muster_sandbox.realnode.services KUBECONFIG DNS-ADDRESS NAMESPACE``: serves a cluster's Services.

Replaces kube-proxy and the cluster DNS: a connection to a cluster IP reaches a ready pod, and
:mod:`muster_sandbox.realnode.cluster_dns` resolves names of Services. Cluster IPs are local addresses of the network
namespace in the file NAMESPACE; everything else runs in this process' own. TCP and IPv4 only; does not serve the
Service ``kubernetes``.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError
from muster_sandbox.realnode.cluster_dns import ServiceNames, build_reply, parse_query
from muster_sandbox.relay import copy_stream

READY = "services are served"
LOOK_S = 0.5
_CLONE_NEWNET = 0x40000000  # setns(2); os.setns comes with Python 3.12


class ServicePort(NamedTuple):
    """One port of a Service. name: of the port, "" for the only one."""

    namespace: str
    service: str
    address: str
    number: int
    name: str


def list_service_ports(services: list[dict[str, Any]]) -> set[ServicePort]:
    """Of Services with a cluster IP."""
    found = set()
    for each in services:
        namespace, service = each["metadata"]["namespace"], each["metadata"]["name"]
        address = each["spec"].get("clusterIP")
        if address in (None, "", "None") or (namespace, service) == ("default", "kubernetes"):
            continue
        for port in each["spec"].get("ports") or ():
            if port.get("protocol", "TCP") == "TCP":
                found.add(ServicePort(namespace, service, address, port["port"], port.get("name", "")))
    return found


def ready_backends(endpoints: dict[str, Any], port: str) -> list[tuple[str, int]]:
    """Address and port of each pod that is ready, of an Endpoints object."""
    return [
        (address["ip"], each["port"])
        for subset in endpoints.get("subsets") or ()
        for each in subset.get("ports") or ()
        if each.get("name", "") == port
        for address in subset.get("addresses") or ()
    ]


@contextlib.contextmanager
def enter_network(namespace: Path) -> Iterator[None]:
    """Sockets that are made here belong to ``namespace``. For a process of one thread."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}", str(namespace))

    with Path("/proc/self/ns/net").open() as home, namespace.open() as there:
        enter(there.fileno())
        try:
            yield
        finally:
            enter(home.fileno())


class ServiceProxy:
    """``client`` must be open. ``namespace``: where cluster IPs are local."""

    def __init__(self, client: KubeClient, namespace: Path) -> None:
        self._client = client
        self._namespace = namespace
        self._open: dict[ServicePort, asyncio.Server] = {}

    async def follow(self) -> None:
        while True:
            with contextlib.suppress(ApiError):  # the next look is soon
                await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        wanted = list_service_ports((await self._client.get("/api/v1/services"))["items"])
        for gone in self._open.keys() - wanted:
            self._open.pop(gone).close()
        for port in wanted - self._open.keys():
            with contextlib.suppress(OSError):  # a Service that has just gone had it
                with enter_network(self._namespace):
                    listener = socket.create_server((port.address, port.number))
                self._open[port] = await asyncio.start_server(self._serving(port), sock=listener)

    def _serving(self, port: ServicePort) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, ApiError):
                place = f"/api/v1/namespaces/{port.namespace}/endpoints/{port.service}"
                backends = ready_backends(await self._client.get(place), port.name)
                if backends:
                    far_reader, far_writer = await asyncio.open_connection(*backends[0])
                    await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))
            writer.close()

        return serve


class DnsServer(asyncio.DatagramProtocol):
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
            with contextlib.suppress(ApiError):  # who asks asks again
                self._transport.sendto(build_reply(query, question, await self._names.addresses(question.name)), asker)


async def main(kubeconfig: Path, dns: str, namespace: Path) -> None:
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((dns, 53))
    async with KubeClient(load_config(kubeconfig), timeout_s=30.0) as client:
        preferred = (await client.get("/apis/discovery.k8s.io"))["preferredVersion"]["groupVersion"]
        looked_up = DnsServer(ServiceNames(client, f"/apis/{preferred}"))
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: looked_up, sock=names)
        print(READY, flush=True)
        await ServiceProxy(client, namespace).follow()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))

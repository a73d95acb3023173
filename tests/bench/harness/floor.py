"""The floor under "kernel line to taint": what any system of this shape has to pay, and nothing else.

A bare read of the kernel log, a PATCH of a NodeHealth's status, its delivery by a watch, a PATCH of the Node, its
delivery by a watch. Blocking sockets, one thread a hop, `http.client` with keep-alive, no decoding beyond finding
the object: no judging, no state, no safety. It runs in the same run as what is measured, on a node that the tainter
leaves alone, so both meet the same machine and the same API server.
"""

import http.client
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "muster-bench floor"


@dataclass(frozen=True)
class Server:
    """An API server by host, port, and a TLS context that holds the client's certificate; or a bearer token."""

    host: str
    port: int
    tls: ssl.SSLContext
    token: str = ""

    def connect(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=60)
        connection.connect()
        # http.client sends head and body apart: without this each request waits for the other side's delayed ACK
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def headers(self, **more: str) -> dict[str, str]:
        return {**({"Authorization": f"Bearer {self.token}"} if self.token else {}), **more}


class BareClient:
    """One keep-alive connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = server.connect()

    def patch(self, path: str, body: object) -> dict[str, object]:
        self._connection.request(
            "PATCH",
            path,
            json.dumps(body),
            self._server.headers(**{"Content-Type": "application/merge-patch+json", "Accept": "application/json"}),
        )
        response = self._connection.getresponse()
        raw = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"PATCH {path}: {response.status} {raw[:200]!r}")
        decoded: dict[str, object] = json.loads(raw)
        return decoded

    def get(self, path: str) -> dict[str, object]:
        self._connection.request("GET", path, headers=self._server.headers(Accept="application/json"))
        response = self._connection.getresponse()
        raw = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"GET {path}: {response.status} {raw[:200]!r}")
        decoded: dict[str, object] = json.loads(raw)
        return decoded

    def close(self) -> None:
        self._connection.close()


def watch_lines(server: Server, path: str, stop: threading.Event) -> Iterator[tuple[float, bytes]]:
    """Each event of a watch as (monotonic seconds when it was here, its JSON line)."""
    connection = server.connect()
    connection.request("GET", f"{path}&watch=1&timeoutSeconds=3000", headers=server.headers(Accept="application/json"))
    response = connection.getresponse()
    try:
        while not stop.is_set():
            line = response.readline()
            if not line:
                return
            yield time.monotonic(), line
    finally:
        connection.close()


def bare_kmsg(device: Path, stop: threading.Event) -> Iterator[bytes]:
    """Records of the kernel log from now on; the first one is empty and says that it is open."""
    fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(fd, 0, os.SEEK_END)
        poll = select.epoll()
        poll.register(fd, select.EPOLLIN)
        yield b""
        while not stop.is_set():
            poll.poll(0.5)
            while True:
                try:
                    yield os.read(fd, 8192)
                except BlockingIOError:
                    break
                except BrokenPipeError:
                    continue  # overrun: the next read goes on at the oldest record
    finally:
        os.close(fd)

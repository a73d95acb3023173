"""Limits the connections of an HTTP server, so that clients that ask nothing keep nobody out.

uvicorn answers 503 beyond ``limit_concurrency``, to the kubelet's probes too. Neither uvicorn nor asyncio limits the
connections that are accepted or in a TLS handshake: idle ones use up the open files of the process, and asyncio then
logs thousands of lines a second. So the server accepts connections itself. A new one is always accepted; if there are
too many, the one that has been idle longest is closed, of the new one's address or of the address that has the most.
Until its first bytes arrive, a connection is only a socket: in TLS it would take 256 KiB and the time of a request.
Connections with a request in progress are not closed. There is always an idle one, because request_limit admits fewer
requests than there may be connections.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from muster_kube.http.slow_clients import GuardedProtocol
from muster_kube.process.address import BACKLOG

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64  # some 2 ms; then the event loop continues with everything else
KEPT_FILES = 256  # for Muster's own connections and files: its pools have fewer than 128 connections
SERVERS = 3  # the operator's: health, metrics, webhooks
FIRST_BYTES_S = 10.0  # as for a complete request (client_timeouts)
REPORT_S = 60.0  # minimum interval of log lines about closed connections
RETRY_S = 1.0  # until connections are accepted again after the system has refused one
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True)
class ConnectionLimits:
    """connections: in all; per_address: with one peer address. Requests in progress may be half as many.
    handshake_s: limit for a TLS handshake. A proxy's address, such as that of an ingress, stands for many people, so
    one address may have half of all connections."""

    connections: int = 512
    per_address: int = 256
    handshake_s: float = 5.0  # a handshake takes two round trips

    @property
    def requests(self) -> int:
        return self.connections // 2

    @property
    def requests_per_address(self) -> int:
        return self.per_address // 2

    def within(self, open_files: int) -> "ConnectionLimits":
        """Limits that fit into that number of open files, for each of the process's servers."""
        connections = min(self.connections, max(8, (open_files - KEPT_FILES) // SERVERS))
        return replace(self, connections=connections, per_address=self.per_address * connections // self.connections)


# asyncio allocates 256 KiB for each TLS connection: 64 MiB
TLS_LIMITS = ConnectionLimits(connections=256, per_address=192)


class _Connection:
    def __init__(self, guard: "ConnectionGuard", sock: socket.socket, address: str) -> None:
        self._guard = guard
        self.sock = sock
        self.address = address
        self.expiry: asyncio.TimerHandle | None = None  # while nothing has arrived
        self.opening: asyncio.Task[None] | None = None
        self.protocol: GuardedProtocol | None = None

    @property
    def is_idle(self) -> bool:
        return self.protocol is None or self.protocol.is_idle

    def renew(self) -> None:
        self._guard.renew(self)

    def forget(self) -> None:
        self._guard.forget(self)

    def drop(self) -> None:
        if self.expiry is not None:
            self._guard.stop_waiting(self)
            self.sock.close()
        elif self.opening is not None and not self.opening.done():
            self.opening.cancel()
        elif self.protocol is not None and self.protocol.transport is not None:
            self.protocol.transport.abort()


class ConnectionGuard:
    """Accepts the connections of ``listener``. For uvicorn it stands for an asyncio.Server: close, wait_closed.

    make_protocol: the protocol of a new connection
    tls:           None for plain HTTP
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], GuardedProtocol],
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._limits = limits
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, dict[_Connection, None]] = {}  # by address; those that have been idle longest first
        self._count = 0
        self._retry: asyncio.TimerHandle | None = None
        self._closed = 0  # connections closed since the last log line
        self._report_at = self._loop.time()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more; established connections continue."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        for connections in list(self._open.values()):
            for each in list(connections):
                if each.expiry is not None:
                    self.forget(each)
                    each.drop()
                elif each.opening is not None:
                    each.opening.cancel()

    async def wait_closed(self) -> None:
        opening = [each.opening for connections in self._open.values() for each in connections if each.opening]
        await asyncio.gather(*opening, return_exceptions=True)

    def renew(self, connection: _Connection) -> None:
        """It has become idle."""
        known = self._open.get(connection.address, {})
        if connection in known:
            del known[connection]
            known[connection] = None

    def forget(self, connection: _Connection) -> None:
        known = self._open.get(connection.address, {})
        if connection in known:
            del known[connection]
            self._count -= 1
            if not known:
                del self._open[connection.address]

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._report(f"cannot accept connections: {error.strerror}")
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(RETRY_S, self._loop.add_reader, self._listener, self._accept)
                return
            sock.setblocking(False)
            self._admit(_Connection(self, sock, str(address[0])))

    def _admit(self, connection: _Connection) -> None:
        known = self._open.setdefault(connection.address, {})
        victim = None
        if len(known) >= self._limits.per_address:
            victim = _idle(known)
        elif self._count >= self._limits.connections:
            victim = self._idle_of_the_largest()
        known[connection] = None
        self._count += 1
        if victim is not None:
            self.forget(victim)
            victim.drop()
            self._closed += 1
            self._report("too many connections, of which the idle ones are closed")
        connection.expiry = self._loop.call_later(FIRST_BYTES_S, self._expire, connection)
        self._loop.add_reader(connection.sock, self._open_connection, connection)

    def stop_waiting(self, connection: _Connection) -> None:
        """For its first bytes."""
        if connection.expiry is not None:
            connection.expiry.cancel()
            connection.expiry = None
        self._loop.remove_reader(connection.sock)

    def _expire(self, connection: _Connection) -> None:
        self.forget(connection)
        connection.drop()

    def _open_connection(self, connection: _Connection) -> None:
        self.stop_waiting(connection)
        connection.opening = self._loop.create_task(self._connect(connection))
        connection.opening.add_done_callback(partial(self._opened, connection))

    def _idle_of_the_largest(self) -> _Connection | None:
        for connections in sorted(self._open.values(), key=len, reverse=True):
            if found := _idle(connections):
                return found
        return None

    async def _connect(self, connection: _Connection) -> None:
        def make_protocol() -> GuardedProtocol:
            connection.protocol = self._make_protocol()
            connection.protocol.record = connection
            return connection.protocol

        tls_s = self._limits.handshake_s if self._tls is not None else None
        await self._loop.connect_accepted_socket(
            make_protocol, connection.sock, ssl=self._tls, ssl_handshake_timeout=tls_s, ssl_shutdown_timeout=tls_s
        )

    def _opened(self, connection: _Connection, opening: "asyncio.Task[None]") -> None:
        connection.opening = None
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            self.forget(connection)
            connection.sock.close()  # nobody else does if the task was cancelled before it began
        if error is not None and not isinstance(error, OSError):  # OSError: a handshake that failed
            log.error("cannot serve a connection: %s", error, exc_info=error)

    def _report(self, what: str) -> None:
        now = self._loop.time()
        if now < self._report_at:
            return
        host, port = self._listener.getsockname()[:2]
        log.warning("%s:%d: %s: %d open, %d closed", host, port, what, self._count, self._closed)
        self._closed, self._report_at = 0, now + REPORT_S


def _idle(connections: dict[_Connection, None]) -> _Connection | None:
    return next((each for each in connections if each.is_idle), None)


class LinesPerMinute(logging.Filter):
    """Passes each message once a minute: uvicorn logs a warning for every invalid request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        now, message = self._clock(), str(record.msg)
        if now < self._next.get(message, now):
            return False
        self._next[message] = now + REPORT_S
        return True

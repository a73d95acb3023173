"""The HTTP transport. It sends a request in one piece, reads what has arrived of a response in one piece, and closes a
connection if a call is cancelled during its TLS handshake. It asks fast whether a connection that rests was closed.

httpcore2 2.16 sends head and body apart: two TLS records, for which the server is woken twice. It closes the socket if
a handshake fails, but not if it is cancelled, and every timeout here is a cancellation. With an API server that
accepts connections but does not respond (stopped, out of memory), each attempt would leak an open socket.
A read of TLS returns one record, in which an API server sends one event of a watch, or less. Its pool probes every
connection that rests before and after each request, and each time asks the system for both addresses of the socket.
"""

import contextlib
import select
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

SocketOption = tuple[int, int, int]


Verify = Callable[[ssl.SSLObject, str], None]
"""Called after a TLS handshake, before anything is sent, with the connection and the server name of the request (the
extension ``sni_hostname``). Raises to refuse the server."""


_PIECE = 64 * 1024  # bytes: a body that is larger is sent while it is made


class RequestStream(httpcore2.AsyncNetworkStream):
    """Keeps what is written until the answer is read, and otherwise delegates to ``inner``."""

    def __init__(
        self, inner: httpcore2.AsyncNetworkStream, verify: Verify | None, tls: ssl.SSLObject | None = None
    ) -> None:
        self._inner = inner
        self._verify = verify
        self._tls = tls
        self._failure: ssl.SSLError | None = None  # of what follows the last read
        self._unsent = bytearray()
        self._socket = inner.get_extra_info("socket")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # as the library does: a server may have answered before it closed the connection
        with contextlib.suppress(httpcore2.WriteError):
            await self._send(timeout)
        if self._failure is not None:
            raise httpcore2.ReadError(str(self._failure)) from self._failure
        pieces, room = [await self._inner.read(max_bytes, timeout)], max_bytes
        while self._tls is not None and pieces[-1] and (room := room - len(pieces[-1])) > 0:
            try:
                pieces.append(self._tls.read(room))
            except (ssl.SSLWantReadError, ssl.SSLEOFError):  # the next read waits, or finds the end
                break
            except ssl.SSLError as error:
                self._failure = error
                break
        return b"".join(pieces)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer
        if len(self._unsent) > _PIECE:
            await self._send(timeout)

    async def _send(self, timeout: float | None) -> None:
        if self._unsent:
            piece, self._unsent = bytes(self._unsent), bytearray()
            await self._inner.write(piece, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            stream = await self._inner.start_tls(ssl_context, server_hostname, timeout)
            tls = stream.get_extra_info("ssl_object")
            if self._verify is not None:
                self._verify(tls, server_hostname or "")
        except BaseException:
            await self._inner.aclose()
            raise
        return RequestStream(stream, None, tls)

    def get_extra_info(self, info: str) -> Any:
        return self._is_readable() if info == "is_readable" else self._inner.get_extra_info(info)

    def _is_readable(self) -> bool:
        """At rest: whether it is broken or closed, or the server has sent what nobody waits for."""
        if self._failure is not None or self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))


class _Backend(httpcore2.AnyIOBackend):
    def __init__(self, verify: Verify | None) -> None:
        self._verify = verify

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        return RequestStream(stream, self._verify)


class Transport(httpx2.AsyncHTTPTransport):
    """HTTP/1.1 with keep-alive; ignores proxy settings of the environment."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None,
        limits: httpx2.Limits,
        socket_options: Iterable[SocketOption] = (),
        verify: Verify | None = None,
    ) -> None:
        super().__init__(verify=tls or False, trust_env=False, limits=limits)
        # the transport has no parameter for the backend, but its pool does
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=list(socket_options),
            network_backend=_Backend(verify),
        )

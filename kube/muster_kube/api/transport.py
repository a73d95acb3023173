"""The HTTP transport. It closes a connection if a call is cancelled during its TLS handshake.

httpcore2 2.16 closes the socket if a handshake fails, but not if it is cancelled, and every timeout here is a
cancellation. With an API server that accepts connections but does not respond (stopped, out of memory), each attempt
would leak an open socket.
"""

import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

SocketOption = tuple[int, int, int]


Verify = Callable[[ssl.SSLObject, str], None]
"""Called after a TLS handshake, before anything is sent, with the connection and the server name of the request (the
extension ``sni_hostname``). Raises to refuse the server."""


class _Stream(httpcore2.AsyncNetworkStream):
    """Delegates to ``inner``."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, verify: Verify | None) -> None:
        self._inner = inner
        self._verify = verify

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            stream = await self._inner.start_tls(ssl_context, server_hostname, timeout)
            if self._verify is not None:
                self._verify(stream.get_extra_info("ssl_object"), server_hostname or "")
        except BaseException:
            await self._inner.aclose()
            raise
        return stream

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


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
        return _Stream(stream, self._verify)


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

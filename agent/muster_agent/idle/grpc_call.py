"""Unary gRPC calls over an open Unix socket.

It uses h2 (1.2 MB of RSS) because no client serves: grpcio takes 13 MB of RSS and starts threads, and grpclib opens its
connection itself, while ours must be opened before the process drops its privileges. Protocol: github.com/grpc/grpc,
doc/PROTOCOL-HTTP2.md.
"""

import asyncio
import contextlib
import socket
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

CHUNK_BYTES = 1 << 16
_PREFIX_BYTES = 5  # before each message: one byte for compression and 4 bytes for the length
_TEXT_LIMIT = 200

# grpc-status, google.golang.org/grpc/codes
OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 0, 8, 12


class GrpcCallFailed(Exception):
    """The call failed. The message says why."""


class GrpcError(GrpcCallFailed):
    """The server answered with an error. status: grpc-status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GrpcConnectionBroken(GrpcCallFailed):
    """The connection failed; a new one may work."""


class UnaryConnection:
    """Client on the socket ``connected``, which it closes with itself. One call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._http.initiate_connection()
        with contextlib.suppress(OSError):  # the first call reports it
            self._send()  # now: a server disconnects clients that are silent for two minutes

    def close(self) -> None:
        self._socket.close()

    async def call(self, method: str, *, limit_bytes: int) -> bytes:
        """The answer of ``method`` (``/package.Service/Method``) to an empty message.

        Raises GrpcError, GrpcConnectionBroken or GrpcCallFailed. The connection survives cancellation.
        """
        try:
            stream_id = self._http.get_next_available_stream_id()
            self._http.send_headers(stream_id, _headers(method))
            self._http.send_data(stream_id, bytes(_PREFIX_BYTES), end_stream=True)
            answer = _Answer(stream_id, limit_bytes)
            self._send()
            try:
                await self._read(answer)
            except BaseException:
                self._give_up(answer)
                raise
        except ProtocolError as error:
            raise GrpcConnectionBroken(f"the answer is not HTTP/2: {_plain(str(error))}") from error
        except OSError as error:
            raise GrpcConnectionBroken(f"connection lost: {error.strerror or error}") from error
        return answer.message()

    async def _read(self, answer: "_Answer") -> None:
        loop = asyncio.get_running_loop()
        while not answer.ended:
            received = await loop.sock_recv(self._socket, CHUNK_BYTES)
            if not received:
                raise GrpcConnectionBroken("the server closed the connection")
            for event in self._http.receive_data(received):
                if isinstance(event, ConnectionTerminated):
                    raise GrpcConnectionBroken("the server is closing the connection (GOAWAY)")
                if isinstance(event, DataReceived) and event.flow_controlled_length:
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                answer.take(event)
            self._send()

    def _send(self) -> None:
        waiting = self._http.data_to_send()
        # a hundred bytes, which fit unless the server has read nothing for hours
        if waiting and self._socket.send(waiting) != len(waiting):
            raise BlockingIOError(0, "the server does not read")

    def _give_up(self, answer: "_Answer") -> None:
        """Cancel the call, so that the rest of its answer is discarded. Close the connection if that fails."""
        if answer.ended:
            return
        try:
            self._http.reset_stream(answer.stream_id, ErrorCodes.CANCEL)
            self._send()
        except (ProtocolError, OSError):
            self.close()


class _Answer:
    def __init__(self, stream_id: int, limit_bytes: int) -> None:
        self.stream_id = stream_id
        self.ended = False
        self._limit_bytes = limit_bytes
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._reset = ""

    def take(self, event: Event) -> None:
        """Raises GrpcCallFailed if the answer is too long."""
        if getattr(event, "stream_id", None) != self.stream_id:
            return
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._headers.update((bytes(name), bytes(value)) for name, value in event.headers or ())
        elif isinstance(event, DataReceived):
            self._body += event.data or b""
            if len(self._body) > self._limit_bytes + _PREFIX_BYTES:
                raise GrpcCallFailed(f"the answer is longer than {self._limit_bytes >> 20} MiB")
        elif isinstance(event, StreamReset):
            self.ended, self._reset = True, f"the server ended the call (HTTP/2 error {int(event.error_code or 0)})"
        elif isinstance(event, StreamEnded):
            self.ended = True

    def message(self) -> bytes:
        http_status = self._headers.get(b":status", b"")
        if self._reset:
            raise GrpcCallFailed(self._reset)
        if http_status != b"200":
            raise GrpcCallFailed(f"HTTP status {_plain(http_status.decode('latin-1'))}, expected 200")
        status = self._headers.get(b"grpc-status", b"").decode("latin-1")
        if not (status.isascii() and status.isdigit() and len(status) < 4):
            raise GrpcCallFailed(f"grpc-status {_plain(status)!r}, expected a number")
        if int(status) != OK:
            text = unquote(self._headers.get(b"grpc-message", b"").decode("latin-1"))
            raise GrpcError(int(status), f"gRPC status {int(status)}: {_plain(text) or 'no message'}")
        if len(self._body) < _PREFIX_BYTES or self._body[0] != 0:
            raise GrpcCallFailed("the answer is not an uncompressed gRPC message")
        if int.from_bytes(self._body[1:_PREFIX_BYTES]) != len(self._body) - _PREFIX_BYTES:
            raise GrpcCallFailed("the length of the answer differs from its prefix")
        return bytes(self._body[_PREFIX_BYTES:])


def _headers(method: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "muster-agent"),
    ]


def _plain(text: str) -> str:
    """Text of another program, made safe for a log line."""
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_LIMIT])

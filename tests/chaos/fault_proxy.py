"""A proxy between one part of Muster and one server, with weather: HTTP/1.1, with TLS on either side.

Framing is h11's. The proxy keeps one connection to the server for each of its clients', and reads whole requests, which
are small, but passes answers on as they come. What the server behind it got and answered can be recorded.
"""

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import h11
from tests.chaos.observer import stamp
from tests.chaos.weather import DELAY_S, THROTTLED_BYTES_PER_S, Link, Weather

_CHUNK = 1 << 16
_STATUS = {
    Weather.CONFLICTS: (409, "Conflict", "the object has been modified"),
    Weather.EXPIRES: (410, "Expired", "too old resource version"),
    Weather.LIMITS: (429, "TooManyRequests", "too many requests"),
    Weather.FAILS: (500, "InternalError", "etcdserver: leader changed"),
}
# method, target, body, status (0: no answer), when, as the audit log writes it
Record = Callable[[str, str, bytes, int, str], None]


class _Cut(Exception):
    """The connection ends here."""


class _Side:
    """One end of a connection, with h11's state of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, http: h11.Connection) -> None:
        self.reader, self.writer, self.http = reader, writer, http

    async def next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(_CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            self.writer.write(data)
            await self.writer.drain()

    def close(self) -> None:
        self.writer.transport.abort()


class FaultProxy:
    """Listens on 127.0.0.1:``port`` once started. server: (host, port); to_server, certificate: TLS towards the server
    and towards clients, None: plain HTTP."""

    def __init__(
        self,
        server: tuple[str, int],
        rng: random.Random,
        *,
        to_server: ssl.SSLContext | None = None,
        certificate: ssl.SSLContext | None = None,
        record: Record | None = None,
    ) -> None:
        self.link = Link(rng)
        self.port = 0
        self._server, self._to_server, self._certificate = server, to_server, certificate
        self._record = record
        self._rng = rng
        self._listening: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], list[_Side]] = {}
        self._watches: dict[_Side, bool] = {}  # by client: whether the last line that was passed on was whole

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._listening.sockets[0].getsockname()[1]

    def set_certificate(self, certificate: ssl.SSLContext) -> None:
        """From now on. Connections that are there are cut."""
        self._certificate = certificate
        self.cut()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self.cut()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await asyncio.sleep(0)  # until the transports have ended

    def cut(self) -> None:
        """Every connection, as if one of the two machines had vanished."""
        for task, sides in list(self._clients.items()):
            for side in sides:
                side.close()
            task.cancel()

    def set_weather(self, weather: Weather, share: float = 1.0) -> None:
        muted = self.link.weather is Weather.MUTES_WATCHES
        self.link.weather, self.link.share = weather, share
        if muted or weather is Weather.ENDS_WATCHES:
            self.link.met += len(self._watches)
            for client in self._watches:
                client.close()
        if weather is Weather.EXPIRES:
            self.link.met += len(self._watches)
            for client, whole in self._watches.items():
                if whole:
                    self._end_with_gone(client)

    def _end_with_gone(self, client: _Side) -> None:
        event = {"type": "ERROR", "object": _body(*_STATUS[Weather.EXPIRES])}
        with suppress(h11.LocalProtocolError, OSError):
            data = client.http.send(h11.Data(json.dumps(event).encode() + b"\n"))
            client.writer.write((data or b"") + (client.http.send(h11.EndOfMessage()) or b""))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        client = _Side(reader, writer, h11.Connection(h11.SERVER, _CHUNK))
        sides = self._clients[task] = [client]
        try:
            if self._certificate is not None:
                await writer.start_tls(self._certificate)
            while True:
                await self._exchange(client, sides)
                if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                    break
                client.http.start_next_cycle()
        except (_Cut, OSError, h11.ProtocolError, ssl.SSLError, asyncio.CancelledError):
            pass  # the client sees a connection that ends
        finally:
            self._watches.pop(client, None)
            for side in sides:
                side.close()
            del self._clients[task]

    async def _exchange(self, client: _Side, sides: list[_Side]) -> None:
        request = await client.next_event()
        if not isinstance(request, h11.Request):
            raise _Cut
        body = b""
        while isinstance(part := await client.next_event(), h11.Data):
            body += bytes(part.data)
        method, target = request.method.decode(), request.target.decode()
        watch = "watch=1" in target or "watch=true" in target.lower()
        weather = self.link.meets(method, watch=watch)
        if weather in _STATUS:
            await _refuse(client, weather)
            return
        if weather is Weather.CUTS:
            raise _Cut
        if weather is Weather.DELAYS:
            await asyncio.sleep(self._rng.uniform(*DELAY_S))
        for _ in range(2 if weather is Weather.DUPLICATES else 1):
            server = await self._connected(sides)
            answer = await self._asked(server, request, body, method, target)
            if weather is Weather.DUPLICATES:
                weather = Weather.CALM  # the first answer goes to nobody
                while not isinstance(await server.next_event(), h11.EndOfMessage):
                    pass
                server.http.start_next_cycle()
        if weather is Weather.LOSES:
            raise _Cut
        await client.send(h11.Response(status_code=answer.status_code, headers=answer.headers, reason=answer.reason))
        if watch and answer.status_code == 200:
            self._watches[client] = True
        try:
            await self._pass_on(client, server, weather)
        finally:
            self._watches.pop(client, None)
        if server.http.our_state is h11.DONE and server.http.their_state is h11.DONE:
            server.http.start_next_cycle()
        else:
            server.close()
            sides.remove(server)

    async def _connected(self, sides: list[_Side]) -> _Side:
        """One that the server has closed meanwhile is made anew: it was idle."""
        if len(sides) > 1:
            if not sides[1].reader.at_eof():
                return sides[1]
            sides.pop().close()
        reader, writer = await asyncio.open_connection(*self._server, ssl=self._to_server, limit=_CHUNK)
        sides.append(_Side(reader, writer, h11.Connection(h11.CLIENT, _CHUNK)))
        return sides[1]

    async def _asked(self, server: _Side, request: h11.Request, body: bytes, method: str, target: str) -> h11.Response:
        """The head of the server's answer."""
        status = 0
        try:
            await server.send(request)
            if body:
                await server.send(h11.Data(body))
            await server.send(h11.EndOfMessage())
            while not isinstance(answer := await server.next_event(), h11.Response):
                if not isinstance(answer, h11.InformationalResponse):
                    raise _Cut
            status = answer.status_code
            return answer
        finally:
            if self._record is not None:
                self._record(method, target, body, status, stamp(datetime.now(UTC)))

    async def _pass_on(self, client: _Side, server: _Side, weather: Weather) -> None:
        """The body of the answer, as it comes; a watch only as long as its client is there."""
        leaves = asyncio.ensure_future(client.reader.read(1)) if client in self._watches else None
        try:
            while True:
                event = await self._unless(leaves, server.next_event())
                if isinstance(event, h11.Data):
                    if client in self._watches:
                        self._watches[client] = bytes(event.data[-1:]) == b"\n"
                        await self._while_muted(leaves)
                    if weather is Weather.TEARS:
                        raise _Cut
                    if self.link.weather is Weather.THROTTLES:
                        await asyncio.sleep(len(event.data) / THROTTLED_BYTES_PER_S)
                    await client.send(h11.Data(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    await client.send(h11.EndOfMessage())
                    return
                else:
                    raise _Cut
        finally:
            if leaves is not None:
                leaves.cancel()
                await asyncio.gather(leaves, return_exceptions=True)

    async def _while_muted(self, leaves: "asyncio.Future[bytes] | None") -> None:
        """For ever: :meth:`set_weather` cuts what was muted."""
        if self.link.weather is Weather.MUTES_WATCHES:
            await self._unless(leaves, asyncio.Event().wait())

    async def _unless(self, leaves: "asyncio.Future[bytes] | None", coming: "object") -> object:
        task = asyncio.ensure_future(coming)  # type: ignore[call-overload]  # a coroutine
        if leaves is None:
            return await task
        try:
            await asyncio.wait([task, leaves], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _Cut
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _refuse(client: _Side, weather: Weather) -> None:
    status, reason, message = _STATUS[weather]
    content = json.dumps(_body(status, reason, message)).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(content)))]
    if weather is Weather.LIMITS:
        headers.append(("retry-after", "1"))
    await client.send(h11.Response(status_code=status, headers=headers))
    await client.send(h11.Data(content))
    await client.send(h11.EndOfMessage())


def _body(status: int, reason: str, message: str) -> dict[str, object]:
    """As the API server's, and as V-IPU's and the proxy's, which have ``why``."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reason, "why": "Silent", "message": message}  # fmt: skip

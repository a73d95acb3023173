"""A proxy of bytes, where TLS ends elsewhere: between agents, and in front of the webhooks of two operators."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

_CHUNK = 1 << 14
DELAY_S = 1.0


class RawWeather(StrEnum):
    CALM = "calm"
    REFUSES = "refuses connections"
    CUTS = "cuts connections after a few bytes"
    STALLS = "passes nothing on"
    DELAYS = "delays"


class RawProxy:
    """Listens on HOST:PORT (0: any free one). servers: (host, port), of which the first that accepts is used."""

    def __init__(self, servers: Sequence[tuple[str, int]], host: str = "127.0.0.1", port: int = 0) -> None:
        self.host, self.port = host, port
        self.weather = RawWeather.CALM
        self.met = 0
        self._servers = servers
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # until the transports have ended

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.met += self.weather is not RawWeather.CALM
        far: asyncio.StreamWriter | None = None
        try:
            if self.weather is RawWeather.REFUSES:
                return
            far_reader, far = await self._connected()
            await asyncio.gather(self._copy(reader, far), self._copy(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the client sees a connection that ends
        finally:
            for each in (writer, far):
                if each is not None:
                    each.transport.abort()
            self._tasks.discard(task)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for server in self._servers:
            with suppress(OSError):
                return await asyncio.open_connection(*server)
        raise ConnectionRefusedError(f"none of {self._servers} accepts a connection")

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            if self.weather is RawWeather.STALLS:
                await asyncio.Event().wait()
            if self.weather is RawWeather.CUTS:
                raise ConnectionResetError
            if self.weather is RawWeather.DELAYS:
                await asyncio.sleep(DELAY_S)
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

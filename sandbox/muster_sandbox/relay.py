"""Relays TCP connections to a port on 127.0.0.1."""

import asyncio
import contextlib

_CHUNK = 1 << 16


class LoopbackRelay:
    """Handles one connection: copies bytes between it and 127.0.0.1:``port``, in both directions."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))
        writer.close()


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until ``reader`` ends, then close ``writer``."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()

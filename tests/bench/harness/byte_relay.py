"""Counts the bytes between a program and the API server: a TCP relay in front of it, which opens no TLS."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CHUNK = 1 << 18


@dataclass
class Bytes:
    """received: by the program. With TLS, HTTP and headers, as they cross the network."""

    sent: int = 0
    received: int = 0


class ByteRelay:
    """Relays to 127.0.0.1:``port`` from a thread of its own."""

    def __init__(self, port: int) -> None:
        self.bytes = Bytes()
        self.port = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._up.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK))
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK)
        await asyncio.gather(self._copy(reader, far_writer, up=True), self._copy(far_reader, writer, up=False))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if up:
                    self.bytes.sent += len(chunk)
                else:
                    self.bytes.received += len(chunk)
                writer.write(chunk)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def counted(kubeconfig: Path) -> Iterator[tuple[Path, Bytes]]:
    """A copy of ``kubeconfig`` whose requests pass through a relay, and its count."""
    content = json.loads(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    relay = ByteRelay(urlsplit(cluster["server"]).port or 443)
    relay.start()
    cluster["server"] = f"https://127.0.0.1:{relay.port}"
    copy = kubeconfig.with_name(f"{kubeconfig.name}.counted")
    copy.touch(mode=0o600)
    copy.write_text(json.dumps(content))
    try:
        yield copy, relay.bytes
    finally:
        relay.stop()

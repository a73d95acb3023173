"""A scripted API server on loopback that speaks raw HTTP, to play every fault of a wire; and faked time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig


@dataclass(frozen=True)
class Asked:
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """A plain answer. close: shut the connection after it. body may be anything json can encode, or raw bytes."""

    status: int = 200
    body: Any = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False
    trickle_s: float = 0.0  # pause before each byte of the body

    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Stream:
    """A watch: lines as they are, then its end. then: ``end`` properly, ``cut`` the connection, or ``hang``."""

    lines: tuple[bytes, ...] = ()
    then: str = "hang"


class Drop:
    """Close the connection without a word."""


Script = Reply | Stream | Drop | Callable[[Asked], Reply | Drop]


class FakeApi:
    """Scripts for (method, path); a watch has its own. The last script of a list is played for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self._scripts: dict[tuple[str, str], list[Script]] = {}
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def on(self, method: str, path: str, *scripts: Script) -> None:
        self._scripts[method, path] = list(scripts)

    def asked_for(self, method: str, path: str | None = None) -> list[Asked]:
        return [a for a in self.asked if _key(a)[0] == method and path in (None, a.path)]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._ended.set()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # asyncio logs a cancelled connection task as an error
        finally:
            writer.transport.abort()  # not close(): it would wait for a client to take what it no longer wants

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        asked = Asked(method, parts.path, dict(parse_qsl(parts.query)), headers, body)
        self.asked.append(asked)
        scripts = self._scripts.get(_key(asked), [Reply(404, {"kind": "Status", "reason": "NotFound"})])
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        if callable(script):
            script = script(asked)
        match script:
            case Drop():
                return False
            case Reply():
                return await self._reply(writer, script)
            case Stream():
                return await self._stream(writer, script)
        raise AssertionError(script)

    async def _reply(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        raw = reply.raw()
        lines = [f"HTTP/1.1 {reply.status} X", f"Content-Length: {len(raw)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if reply.trickle_s:
            for byte in raw:
                await asyncio.sleep(reply.trickle_s)
                writer.write(bytes([byte]))
                await writer.drain()
        else:
            writer.write(raw)
        await writer.drain()
        return not reply.close

    async def _stream(self, writer: asyncio.StreamWriter, stream: Stream) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
        for line in stream.lines:
            writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        await writer.drain()
        if stream.then == "hang":
            await self._ended.wait()
        elif stream.then == "end":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        return False


def _key(asked: Asked) -> tuple[str, str]:
    return "WATCH" if asked.query.get("watch") == "1" else asked.method, asked.path


class FakeTime:
    """A clock that only ``sleep`` moves. ``slept`` are the seconds asked for; after ``limit`` sleeps it blocks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.limit = 10_000

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) >= self.limit:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready: hours pass in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined] # BaseEventLoop's own
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined] # as above
        super()._run_once()  # type: ignore[misc] # as above


def _run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


async def _until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not only an event's
            await asyncio.sleep(0.002)


class Wire:
    """The words of the scripts, and helpers of time, for tests."""

    Reply = Reply
    Stream = Stream
    Drop = Drop
    until: Any = staticmethod(_until)
    run_virtually: Any = staticmethod(_run_virtually)

    @staticmethod
    def event(kind: str, obj: dict[str, Any]) -> bytes:
        return json.dumps({"type": kind, "object": obj}).encode() + b"\n"

    @staticmethod
    def node(name: str, version: int, **labels: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}

    @staticmethod
    def listing(version: int, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
        metadata = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
        return {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": list(items)}

    @staticmethod
    def failure(code: int, reason: str, message: str = "words") -> dict[str, Any]:
        return {"kind": "Status", "code": code, "reason": reason, "message": message, "metadata": {}}


@pytest.fixture(scope="session")
def wire() -> Wire:
    return Wire()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def config(api: FakeApi) -> ClusterConfig:
    return ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")


@pytest.fixture
async def client(config: ClusterConfig, fake_time: FakeTime) -> AsyncIterator[KubeClient]:
    # a call has as long as a stalled machine needs; tests of time limits set their own
    async with KubeClient(config, sleep=fake_time.sleep, timeout_s=30.0) as made:
        yield made

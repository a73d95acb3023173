"""Loki's query_range as its reference describes it, over HTTP or called directly, holding what a test pushes.

start is included, end is not; ``limit`` counts over all streams, in the direction's order; lines of one time are
ordered by their stream's labels; the same line of the same time in the same stream is kept once; structured metadata
stands among the labels, as it does where categorize-labels is not asked for. Selectors take =, !=, =~ and !~, filters
|=, !=, |~ and !~, and | label= and its like.
"""

import asyncio
import email.utils
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

NS = 1_000_000_000
_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(,|\})')
_LABEL_FILTER = re.compile(r'\s*\|\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|`[^`]*`)')
_FILTER = re.compile(r'\s*(\|=|!=|\|~|!~)\s*("(?:[^"\\]|\\.)*"|`[^`]*`)')

Labels = tuple[tuple[str, str], ...]


class BadQuery(Exception):
    pass


@dataclass
class Stored:
    at_ns: int
    labels: Labels
    line: str
    metadata: Labels = ()


@dataclass
class Store:
    """clock: Loki's own, seconds. asked: the queries so far."""

    clock: Callable[[], float] = time.time
    most: int = 5000
    entries: list[Stored] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)

    def push(self, line: str, at_ns: int | None = None, metadata: dict[str, str] | None = None, **labels: str) -> int:
        """Returns its time."""
        at = int(self.clock() * NS) if at_ns is None else at_ns
        stored = Stored(at, tuple(sorted(labels.items())), line, tuple(sorted((metadata or {}).items())))
        if stored not in self.entries:
            self.entries.append(stored)
        return at

    def dmesg(self, node: str, line: str, at_ns: int | None = None) -> int:
        """As the founding page's collector ships it."""
        labels = {"k8s_daemonset_name": "dmesg", "k8s_namespace_name": "dmesg-logging", "k8s_container_name": "dmesg"}
        return self.push(line, at_ns, {"k8s_node_name": node}, **labels, k8s_pod_name=f"dmesg-{node}")

    def query(self, parameters: dict[str, str]) -> dict[str, Any]:
        """Raises BadQuery with Loki's words."""
        self.asked.append(parameters)
        limit = int(parameters.get("limit", "100"))
        if limit > self.most:
            raise BadQuery(
                f"max entries limit per query exceeded, limit > max_entries_limit_per_query ({limit} > {self.most})"
            )
        end = int(parameters.get("end", self.clock() * NS))
        start = int(parameters.get("start", end - 3600 * NS))
        if end <= start:
            raise BadQuery("end timestamp must not be before or equal to start time")
        holds = selector(parameters["query"])
        found = [one for one in self.entries if start <= one.at_ns < end and holds(one)]
        backward = parameters.get("direction", "backward") == "backward"
        found.sort(key=lambda one: (-one.at_ns if backward else one.at_ns, one.labels))
        streams: dict[Labels, list[list[str]]] = {}
        for one in found[:limit]:
            labels = tuple(sorted({**dict(one.metadata), **dict(one.labels)}.items()))
            streams.setdefault(labels, []).append([str(one.at_ns), one.line])
        result = [{"stream": dict(labels), "values": values} for labels, values in streams.items()]
        return {"status": "success", "data": {"resultType": "streams", "result": result, "stats": {"summary": {}}}}


def selector(query: str) -> Callable[[Stored], bool]:
    text = query.strip()
    if not text.startswith("{"):
        raise BadQuery("parse error : syntax error: unexpected IDENTIFIER")
    tests: list[Callable[[Stored], bool]] = []
    at, closed = 1, text[1:].lstrip().startswith("}")
    while not closed:
        found = _MATCHER.match(text, at)
        if found is None:
            raise BadQuery(f"parse error at line 1, col {at}: syntax error")
        tests.append(_label_test(found[1], found[2], _text(found[3])))
        at, closed = found.end(), found[4] == "}"
    rest = text[at:].strip() if at > 1 else text.partition("}")[2].strip()
    while rest:
        found = _FILTER.match(rest)
        if found is not None:
            tests.append(_line_test(found[1], _text(found[2])))
        else:
            found = _LABEL_FILTER.match(rest)
            if found is None:
                raise BadQuery(f"parse error at line 1, col {len(text) - len(rest)}: syntax error")
            tests.append(_label_test(found[1], found[2], _text(found[3]), metadata=True))
        rest = rest[found.end() :].strip()
    return lambda stored: all(test(stored) for test in tests)


def _text(quoted: str) -> str:
    return quoted[1:-1] if quoted[0] == "`" else str(json.loads(quoted))


def _label_test(name: str, how: str, wanted: str, *, metadata: bool = False) -> Callable[[Stored], bool]:
    def holds(stored: Stored) -> bool:
        value = dict(stored.labels).get(name) or (dict(stored.metadata).get(name, "") if metadata else "")
        same = re.fullmatch(wanted, value) is not None if "~" in how else value == wanted
        return same != how.startswith("!")

    return holds


def _line_test(how: str, wanted: str) -> Callable[[Stored], bool]:
    def holds(stored: Stored) -> bool:
        found = re.search(wanted, stored.line) is not None if "~" in how else wanted in stored.line
        return found != how.startswith("!")

    return holds


Answer = tuple[int, dict[str, str], bytes]


@dataclass
class LokiServer:
    """tenant: the one that holds the store; None: Loki runs without. authorization: what a gateway in front wants.

    instead: called with the parameters; what it returns is answered instead of the truth, None: the truth
    """

    store: Store = field(default_factory=Store)
    tenant: str | None = None
    authorization: str | None = None
    instead: Callable[[dict[str, str]], Answer | None] = lambda _parameters: None
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, target: str, headers: dict[str, str]) -> Answer:
        self.headers.append(headers)
        parts = urlsplit(target)
        parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if self.authorization is not None and headers.get("authorization") != self.authorization:
            return 401, {}, b"401 Authorization Required"
        if self.tenant is not None and "x-scope-orgid" not in headers:
            return 401, {}, b"no org id\n"
        if parts.path != "/loki/api/v1/query_range":
            return 404, {}, b"404 page not found\n"
        told = self.instead(parameters)
        if told is not None:
            return told
        if self.tenant is not None and self.tenant not in headers["x-scope-orgid"].split("|"):
            return 200, {}, json.dumps(Store().query(parameters)).encode()
        try:
            return 200, {}, json.dumps(self.store.query(parameters)).encode()
        except BadQuery as error:
            return 400, {}, f"{error}\n".encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                first, *lines = head.split("\r\n")
                headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
                status, more, body = self.answer(first.split(" ")[1], headers)
                date = email.utils.formatdate(self.store.clock(), usegmt=True)
                told = {"Date": date, "Content-Type": "application/json", "Content-Length": str(len(body)), **more}
                text = "".join(f"{name}: {value}\r\n" for name, value in told.items())
                writer.write(f"HTTP/1.1 {status} Told\r\n{text}\r\n".encode() + body)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""


@asynccontextmanager
async def serving(loki: LokiServer, port: int = 0, ssl: Any = None) -> AsyncIterator[LokiServer]:
    """``loki`` on loopback; afterwards nobody listens there, and open connections are cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await loki.serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=ssl, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    loki.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"
    try:
        yield loki
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()

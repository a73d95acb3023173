"""A Kubernetes API client over HTTP/1.1 with keep-alive, which decodes only the fields that the caller's type names.

No library served: the official one costs 35 MB and decodes thirty times slower, and Muster needs few calls. The time
limit (``timeout_s``) applies to a whole call, not to each read, because leadership depends on it. The client repeats
only GETs, and any call after 401 with a fresh token, because the server has then done nothing.
"""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, Self, cast
from urllib.parse import urlencode

import httpx2
import msgspec
from typing_extensions import TypeVar

from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, BadAnswer, TooManyRequests, Unreachable, api_error
from muster_kube.api.list_decoder import ListPage, PageReader
from muster_kube.api.transport import Transport

T = TypeVar("T", default=dict[str, Any])
Params = Mapping[str, str | int | bool]
PatchKind = Literal["merge", "strategic", "json"]

_DICT: Any = dict  # lets a caller without a type get dict[str, Any]
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
_APPLY_TYPE = "application/apply-patch+yaml"  # JSON is YAML
_JSON = "application/json"
_ANSWER_LIMIT = 16 << 20  # bytes of a response other than a list; etcd stores objects of up to 1.5 MB
_LINE_LIMIT = 16 << 20  # bytes of one watch event
_GET_TRIES = 3
_KEEPALIVE_S = 60.0  # for an idle connection
PAGE_SIZE = 500  # items


def _socket_options() -> list[tuple[int, int, int]]:
    """Detect a lost peer (power, NAT) within about a minute, even during a silent watch."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60000)):
        number = getattr(socket, name, None)
        if number is not None:  # not available on every system
            options.append((socket.IPPROTO_TCP, number, seconds))
    return options


@lru_cache(maxsize=256)
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cast("type[Any]", kind))


@lru_cache(maxsize=256)
def _parse_url(url: str) -> httpx2.URL:
    """Kept, because an agent writes the same object each time."""
    return httpx2.URL(url)


class KubeClient:
    """A client for one cluster; an async context manager. Paths are API paths (``/api/v1/nodes/x``).

    timeout_s: for a whole call, including reading; must be less than lease duration minus renew deadline
    max_connections: maximum number of concurrent calls and watches; further calls wait within their timeout
    around: wraps the HTTP transport, for tests that inject failures
    All calls raise :class:`ApiError` (see :mod:`muster_kube.api.errors`), or ConfigError if a token is unreadable.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "muster",
        timeout_s: float = 3.5,
        max_connections: int = 32,
        around: Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport] = lambda transport: transport,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self.timeout_s = timeout_s
        self._sleep = sleep
        self._around = around
        self._user_agent = user_agent
        self._limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=_KEEPALIVE_S
        )
        self._transport: httpx2.AsyncBaseTransport | None = None

    async def __aenter__(self) -> Self:
        self._transport = self._around(
            Transport(
                tls=self.config.ssl_context() if self.config.server.startswith("https") else None,
                limits=self._limits,
                socket_options=_socket_options(),
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.aclose()

    async def get(
        self, path: str, *, type: type[T] = _DICT, params: Params | None = None, timeout_s: float | None = None
    ) -> T:
        """GET one object, or any other JSON."""
        return await self._call("GET", path, None, _JSON, type, params, timeout_s)

    async def create(
        self,
        path: str,
        body: object,
        *,
        type: type[T] = _DICT,
        params: Params | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """POST ``body`` to a collection (or a subresource such as ``…/eviction``)."""
        return await self._call("POST", path, body, _JSON, type, params, timeout_s)

    async def replace(
        self,
        path: str,
        body: object,
        *,
        type: type[T] = _DICT,
        params: Params | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """PUT the whole object."""
        return await self._call("PUT", path, body, _JSON, type, params, timeout_s)

    async def delete(
        self,
        path: str,
        body: object | None = None,
        *,
        type: type[T] = _DICT,
        params: Params | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """DELETE; ``body``: DeleteOptions. Returns the object or a Status, depending on the server."""
        return await self._call("DELETE", path, body, _JSON, type, params, timeout_s)

    async def patch(
        self,
        path: str,
        body: object,
        *,
        kind: PatchKind = "merge",
        type: type[T] = _DICT,
        params: Params | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """PATCH. A resourceVersion in ``body``'s metadata makes it conditional (Conflict). Custom resources do not
        support strategic merge patches."""
        return await self._call("PATCH", path, body, _PATCH_TYPES[kind], type, params, timeout_s)

    async def apply(
        self,
        path: str,
        body: object,
        *,
        field_manager: str,
        force: bool = False,
        type: type[T] = _DICT,
        timeout_s: float | None = None,
    ) -> T:
        """Server-side apply; ``body`` has apiVersion and kind. Raises Conflict if another manager owns a field."""
        params: Params = {"fieldManager": field_manager, "force": force}
        return await self._call("PATCH", path, body, _APPLY_TYPE, type, params, timeout_s)

    async def list_page(
        self,
        path: str,
        type: type[T],
        *,
        params: Params | None = None,
        transform: Callable[[T], T] | None = None,
        timeout_s: float | None = None,
    ) -> ListPage[T]:
        """One page (``limit``, ``continue`` in ``params``), decoded item by item while it is received.

        Memory holds the projected items (after ``transform``) and one chunk, regardless of the size of the response.
        ``timeout_s`` limits each pause, not the whole call, because listing a large fleet takes long.
        """
        silence_s = self.timeout_s if timeout_s is None else timeout_s
        for attempt in range(_GET_TRIES):
            try:
                async with self._open("GET", path, params, silence_s) as response:
                    reader = PageReader(type, path, transform=transform)
                    async for chunk in self._chunks(response, path, silence_s):
                        reader.feed(chunk)
                    return reader.finish()
            except (TooManyRequests, Unreachable) as error:
                await self._wait_to_retry(error, attempt, silence_s)
        raise AssertionError("unreachable: the last attempt raises")  # pragma: no cover

    async def list_pages(
        self,
        path: str,
        type: type[T],
        *,
        params: Params | None = None,
        transform: Callable[[T], T] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[ListPage[T]]:
        """All pages, each as :meth:`list_page` returns it. An error of a later page, such as ``Gone``, is raised there.

        params: labelSelector, fieldSelector. resourceVersion applies to the first page only; a continue token contains
        its own. At version 0 a server with a cache ignores the page size and sends everything in one page.
        """
        query: dict[str, str | int | bool] = {**(params or {}), "limit": PAGE_SIZE}
        while True:
            page = await self.list_page(path, type, params=query, transform=transform, timeout_s=timeout_s)
            yield page
            if not page.continue_:
                return
            query.pop("resourceVersion", None)
            query["continue"] = page.continue_

    @asynccontextmanager
    async def watch(self, path: str, params: Params, *, silence_s: float) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Watch: yields batches of complete lines, each the JSON of one event. Ends when the server closes it.

        An incomplete last line is dropped: the next watch sends the event again. Raises Unreachable after
        ``silence_s`` seconds without data.
        """
        async with self._open("GET", path, {**params, "watch": "1"}, self.timeout_s) as response:
            yield self._lines(response, path, silence_s)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Params | None = None,
        *,
        silence_s: float | None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """A streamed response, for example of a proxied Service: yields batches of complete lines.

        An incomplete last line is dropped. Raises Unreachable after ``silence_s`` seconds without data, also before the
        first byte; None: no limit. headers: in addition to the usual ones.
        """
        async with self._open("GET", path, params, silence_s, headers=headers) as response:
            yield self._lines(response, path, silence_s)

    async def date(self, path: str, *, timeout_s: float | None = None) -> str:
        """The server's clock in whole seconds, from the ``Date`` header of a response to GET; empty without one."""
        async with self._open("GET", path, None, self.timeout_s if timeout_s is None else timeout_s) as response:
            return response.headers.get("date", "")

    async def _lines(self, response: httpx2.Response, path: str, silence_s: float | None) -> AsyncIterator[list[bytes]]:
        rest = b""
        async for chunk in self._chunks(response, path, silence_s):
            if b"\n" not in chunk:
                rest += chunk
                if len(rest) > _LINE_LIMIT:
                    raise BadAnswer(200, f"a watch event of more than {_LINE_LIMIT} bytes", path)
                continue
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            yield [line for line in lines if line]

    async def _call(
        self,
        method: str,
        path: str,
        body: object | None,
        content_type: str,
        kind: type[T],
        params: Params | None,
        timeout_s: float | None,
    ) -> T:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        ends = time.monotonic() + limit_s
        content = b"" if body is None else msgspec.json.encode(body)
        tries = _GET_TRIES if method == "GET" else 1
        for attempt in range(tries):
            try:
                async with _limit_time(ends - time.monotonic(), limit_s, path):
                    raw = await self._exchange(method, path, params, content, content_type)
            except (TooManyRequests, Unreachable) as error:
                await self._wait_to_retry(error, attempt if tries > 1 else _GET_TRIES, ends - time.monotonic())
            else:
                return _decode(raw, kind, path)
        raise AssertionError("unreachable: the last attempt raises")  # pragma: no cover

    async def _wait_to_retry(self, error: TooManyRequests | Unreachable, attempt: int, left_s: float) -> None:
        """Wait until the GET may be repeated; raise ``error`` if it must not be."""
        if attempt >= _GET_TRIES - 1:
            raise error
        if isinstance(error, TooManyRequests):
            # jittered, so that clients that were throttled together do not retry together
            wait_s = error.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311 - spreads load, guards nothing
            if wait_s >= left_s:
                raise error
            await self._sleep(wait_s)
        elif attempt > 0 or not isinstance(error.__cause__, httpx2.RemoteProtocolError | httpx2.ReadError):
            raise error  # only a kept-alive connection that the server has closed justifies another attempt

    async def _exchange(
        self, method: str, path: str, params: Params | None, content: bytes, content_type: str
    ) -> bytearray:
        raw = bytearray()
        async with self._open(method, path, params, None, content, content_type) as response:
            async for chunk in self._chunks(response, path, None):
                raw += chunk
                if len(raw) > _ANSWER_LIMIT:
                    raise BadAnswer(response.status_code, f"more than {_ANSWER_LIMIT} bytes", path)
        return raw

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        params: Params | None,
        timeout_s: float | None,
        content: bytes = b"",
        content_type: str = _JSON,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[httpx2.Response]:
        """A successful response with its body unread. ``timeout_s``: until the headers arrive; None: no limit."""
        refused = False
        while True:
            header = await self.config.credentials.header()
            request = self._request(method, path, params, content, content_type, header)
            request.headers.update(headers)
            async with _limit_time(timeout_s, timeout_s, path), _transport_errors(path, self.config.server):
                response = await self._get_transport().handle_async_request(request)
                if response.status_code >= 300:
                    body = await _first_bytes(response)
            try:
                if response.status_code < 300:
                    yield response
                    return
            finally:
                async with _transport_errors(path, self.config.server):
                    await response.aclose()
            if response.status_code == 401 and not refused and self.config.credentials.refused(header):
                refused = True
                continue
            raise api_error(response.status_code, body, path, response.headers.get("retry-after"))

    def _request(
        self, method: str, path: str, params: Params | None, content: bytes, content_type: str, header: str | None
    ) -> httpx2.Request:
        headers = {"Accept": _JSON, "User-Agent": self._user_agent}
        if content:
            headers["Content-Type"] = content_type
        if header is not None:
            headers["Authorization"] = header
        url = self.config.server + path
        if params:
            url += "?" + urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in params.items()})
        extensions: dict[str, Any] = {}
        if self.config.tls_server_name:
            extensions["sni_hostname"] = self.config.tls_server_name
        return httpx2.Request(method, _parse_url(url), headers=headers, content=content, extensions=extensions)

    def _get_transport(self) -> httpx2.AsyncBaseTransport:
        if self._transport is None:
            raise RuntimeError("KubeClient is used outside its `async with`")
        return self._transport

    async def _chunks(self, response: httpx2.Response, path: str, silence_s: float | None) -> AsyncIterator[bytes]:
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - what the async transport returns
        chunks = stream.__aiter__()
        while True:
            try:
                async with _limit_time(silence_s, silence_s, path), _transport_errors(path, self.config.server):
                    chunk = await chunks.__anext__()
            except StopAsyncIteration:
                return
            yield chunk


def _decode(raw: bytearray, kind: type[T], path: str) -> T:
    try:
        decoded: T = _decoder(cast("Hashable", kind)).decode(raw or b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(raw[:120]).decode("utf-8", "replace")
        raise BadAnswer(200, f"{error}; the response begins with {shown!r}", path) from error
    return decoded


async def _first_bytes(response: httpx2.Response, limit: int = 1 << 16) -> bytes:
    """The body of an error response, truncated if it is very long."""
    body = bytearray()
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - what the async transport returns
    async for chunk in stream:
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


@asynccontextmanager
async def _transport_errors(path: str, server: str) -> AsyncIterator[None]:
    try:
        yield
    except (httpx2.TransportError, OSError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise Unreachable(f"{server}: {text}", path) from error


@asynccontextmanager
async def _limit_time(left_s: float | None, limit_s: float | None, path: str) -> AsyncIterator[None]:
    """Raise Unreachable after ``left_s`` seconds. ``limit_s``: the limit of the whole call, for the message."""
    if left_s is None:
        yield
        return
    expiry = asyncio.timeout(max(left_s, 0.0))
    try:
        async with expiry:
            yield
    except TimeoutError as error:
        if not expiry.expired():
            raise
        raise Unreachable(f"timeout: no answer within {limit_s:g} s", path) from error


__all__ = ["ApiError", "KubeClient", "ListPage", "Params", "PatchKind"]

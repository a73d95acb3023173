"""Calls to other agents: HTTP/1.1 to addresses of the Fleet, bounded in time, in size and in number.

No proxy of the environment is used and no redirect followed, so nothing goes to anybody but the peer.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import httpx2
import msgspec
from pydantic import BaseModel

from muster_agent.fleet import PeerAgent
from muster_agent.query.node_answer import PEER_AGENT
from muster_checks.base.vocabulary import shorten
from muster_kube.api.credentials import FileToken
from muster_kube.api.errors import ConfigError

CONNECT_S = 3.0
ANSWER_LIMIT = 4 << 20  # bytes; thirty checks with all their findings are a tenth of it
ERROR_LIMIT = 4096  # bytes of a refusal
LINE_LIMIT = 1 << 20
MISDIRECTED = 421  # what an agent says to another one that means a third
AT_ONCE = 256  # connections of all calls together; a process may have 1,024 files or more

Query = Mapping[str, str] | Iterable[tuple[str, str]]


class PeerCallFailed(Exception):
    """A peer that did not answer as it should.

    reason:  ``NoAgent`` (no address is known), ``Unreachable`` (no connection, or it broke), ``NoAnswer`` (nothing
             within the time), ``BadAnswer`` (no JSON, a redirect, too much), ``WrongNode`` (the address is another
             node's now), ``Refused`` (it said no)
    message: for people
    status:  HTTP's, 0 where there was none
    """

    def __init__(self, reason: str, message: str, status: int = 0) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = shorten(message)
        self.status = status


class PeerClient(Protocol):
    """How other agents are asked; see HttpPeerClient. All raise PeerCallFailed."""

    async def get_json(self, peer: PeerAgent, path: str, params: Query, timeout_s: float) -> Any: ...

    async def post_json(self, peer: PeerAgent, path: str, body: BaseModel, timeout_s: float) -> Any: ...

    def stream(
        self, peer: PeerAgent, path: str, body: BaseModel
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def alive(self, peer: PeerAgent, timeout_s: float) -> bool: ...


class HttpPeerClient:
    """token: a file with our token for the audience ``muster``, read anew as it rotates, sent where one is asked for;
    without it peers answer what everybody may ask. at_once: calls of all callers together; more wait, and their time
    has not begun."""

    def __init__(
        self,
        token: Path | None,
        *,
        connect_s: float = CONNECT_S,
        answer_limit: int = ANSWER_LIMIT,
        at_once: int = AT_ONCE,
    ) -> None:
        self._token = FileToken(token) if token is not None else None
        self._timeouts = {"connect": connect_s, "read": None, "write": None, "pool": None}
        self._answer_limit = answer_limit
        self._free = asyncio.Semaphore(at_once)
        # no connection is kept: a fleet is asked now and then, and idle sockets to all of it are memory. So there is
        # nothing to close, either
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits)

    async def get_json(self, peer: PeerAgent, path: str, params: Query, timeout_s: float) -> Any:
        """The decoded answer. ``timeout_s``: for the whole call."""
        query = urlencode(list(params.items() if isinstance(params, Mapping) else params))
        return await self._json("GET", peer, f"{path}?{query}" if query else path, b"", timeout_s)

    async def post_json(self, peer: PeerAgent, path: str, body: BaseModel, timeout_s: float) -> Any:
        """As get_json, with a JSON body."""
        return await self._json("POST", peer, path, _encode(body), timeout_s)

    @asynccontextmanager
    async def stream(self, peer: PeerAgent, path: str, body: BaseModel) -> AsyncIterator[AsyncIterator[bytes]]:
        """POSTs ``body``; the answer's lines as they come, until the peer ends it or this is left, which closes the
        connection. Only connecting is bounded in time."""
        header = await self._header()
        async with self._free, self._opened("POST", peer, path, _encode(body), header) as response:
            if response.status_code >= 300:
                raise _refusal(peer, response.status_code, await _bounded(peer, response, ERROR_LIMIT))
            yield _lines(peer, response)

    async def alive(self, peer: PeerAgent, timeout_s: float) -> bool:
        """Whether it speaks HTTP at all, whatever it says."""
        try:
            async with asyncio.timeout(timeout_s), self._opened("GET", peer, "/healthz", b"", None):
                return True
        except (PeerCallFailed, TimeoutError):
            return False

    async def _json(self, method: str, peer: PeerAgent, target: str, content: bytes, timeout_s: float) -> Any:
        async with self._free:
            try:
                async with asyncio.timeout(timeout_s):
                    status, raw = await self._exchange(method, peer, target, content)
            except TimeoutError as error:
                raise PeerCallFailed(
                    "NoAnswer", f"{peer_endpoint(peer)} has not answered within {timeout_s:g} s"
                ) from error
        if status >= 300:
            raise _refusal(peer, status, raw)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            shown = raw[:80].decode("utf-8", "replace")
            raise PeerCallFailed(
                "BadAnswer", f"{peer_endpoint(peer)} answers no JSON ({error}); it begins {shown!r}"
            ) from error

    async def _exchange(self, method: str, peer: PeerAgent, target: str, content: bytes) -> tuple[int, bytes]:
        # whoever has seen a token may use it with other agents: a question that everybody may ask goes without one
        header = None if method == "GET" else await self._header()
        status, raw = await self._once(method, peer, target, content, header)
        for _ in range(2):
            if status != 401 or self._token is None:
                break
            if header is not None:
                self._token.refused(header)
            fresh = await self._header()  # the kubelet may have replaced it
            if fresh == header:
                break
            header = fresh
            status, raw = await self._once(method, peer, target, content, header)
        return status, raw

    async def _once(
        self, method: str, peer: PeerAgent, target: str, content: bytes, header: str | None
    ) -> tuple[int, bytes]:
        async with self._opened(method, peer, target, content, header) as response:
            limit = ERROR_LIMIT if response.status_code >= 300 else self._answer_limit
            return response.status_code, await _bounded(peer, response, limit)

    async def _header(self) -> str | None:
        if self._token is None:
            return None
        try:
            return await self._token.header()
        except ConfigError:
            return None  # no token is mounted here

    @asynccontextmanager
    async def _opened(
        self, method: str, peer: PeerAgent, target: str, content: bytes, header: str | None
    ) -> AsyncIterator[httpx2.Response]:
        if not peer.address:
            raise PeerCallFailed("NoAgent", f"no agent runs on node {peer.node}")
        headers = {"Accept": "application/json", "User-Agent": PEER_AGENT, "Connection": "close"}
        if content:
            headers["Content-Type"] = "application/json"
        if header is not None:
            headers["Authorization"] = header
        url = f"http://{peer_endpoint(peer)}{target}"
        extensions = {"timeout": self._timeouts}
        request = httpx2.Request(method, url, headers=headers, content=content, extensions=extensions)
        try:
            response = await self._transport.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx2.TransportError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise PeerCallFailed("Unreachable", f"{peer_endpoint(peer)}: {text}") from error


def peer_endpoint(peer: PeerAgent) -> str:
    """``ADDRESS:PORT`` as in a URL; empty where no agent runs."""
    if not peer.address:
        return ""
    return f"[{peer.address}]:{peer.port}" if ":" in peer.address else f"{peer.address}:{peer.port}"


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - what the async transport returns
    async for chunk in stream:
        yield chunk


async def _bounded(peer: PeerAgent, response: httpx2.Response, limit: int) -> bytes:
    """The body; of a refusal the beginning. Raises PeerCallFailed for a longer answer."""
    raw = bytearray()
    async for chunk in _chunks(response):
        raw += chunk
        if len(raw) > limit:
            if response.status_code >= 300:
                break
            raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} answers more than {limit} bytes")
    return bytes(raw)


async def _lines(peer: PeerAgent, response: httpx2.Response) -> AsyncIterator[bytes]:
    """Whole lines without their ends. One that the end of the answer cuts off is dropped."""
    rest = b""
    async for chunk in _chunks(response):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_LIMIT:
            raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} sends a line of more than {LINE_LIMIT} bytes")
        for line in lines:
            if line:
                yield line


def _refusal(peer: PeerAgent, status: int, raw: bytes) -> PeerCallFailed:
    text = raw[:ERROR_LIMIT].decode("utf-8", "replace").strip()
    if status < 400:
        return PeerCallFailed(
            "BadAnswer", f"{peer_endpoint(peer)} sends us elsewhere (HTTP {status}); no redirect is followed", status
        )
    if status == MISDIRECTED:
        return PeerCallFailed("WrongNode", f"{peer_endpoint(peer)} is not the agent of {peer.node}: {text}", status)
    return PeerCallFailed(
        "Refused", f"{peer_endpoint(peer)} refuses (HTTP {status}): {text or 'no reason given'}", status
    )


def _encode(body: BaseModel) -> bytes:
    return body.model_dump_json(by_alias=True).encode()

"""HTTP/1.1 client for other agents over TLS, with limits on time, size and number of requests.

Both sides prove a key: each trusts the one that the other's NodeHealth publishes. No token is ever sent. The client
ignores proxy settings of the environment and follows no redirects, so requests reach only the peer.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlencode

import httpx2
import msgspec
from pydantic import BaseModel

from muster_agent.fleet import PeerAgent
from muster_agent.identity.own_identity import OwnIdentity, peer_fingerprint
from muster_agent.identity.published_keys import NODE
from muster_agent.query.node_answer import PEER_AGENT
from muster_checks.base.vocabulary import shorten
from muster_kube.api.transport import Transport

CONNECT_S = 3.0
ANSWER_LIMIT = 4 << 20  # bytes; ten times the answer of thirty checks with all their findings
ERROR_LIMIT = 8192  # bytes of an error response; the names of all checks and parameters are 3 KB
LINE_LIMIT = 1 << 20
MISDIRECTED = 421  # the answer of an agent to a request for another node
AT_ONCE = 256  # connections of all requests together; the limit on open files is 1,024 or more

Query = Mapping[str, str] | Iterable[tuple[str, str]]


class PeerCallFailed(Exception):
    """A request to a peer failed.

    reason:  ``NoAgent`` (its address is not known), ``Unreachable`` (the connection failed), ``NoAnswer`` (timeout),
             ``BadAnswer`` (not JSON, a redirect, or too large), ``WrongNode`` (the address now belongs to another
             node), ``WrongKey``, ``NoKey`` (its NodeHealth publishes another key, or none), ``Refused`` (an HTTP error)
    message: for people
    status:  the HTTP status, 0 if there was none
    """

    def __init__(self, reason: str, message: str, status: int = 0) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = shorten(message)
        self.status = status


class PeerClient(Protocol):
    """Requests to other agents; see HttpPeerClient. All methods raise PeerCallFailed."""

    async def get_json(self, peer: PeerAgent, path: str, params: Query, timeout_s: float) -> Any: ...

    async def post_json(self, peer: PeerAgent, path: str, body: BaseModel, timeout_s: float) -> Any: ...

    def stream(
        self, peer: PeerAgent, path: str, body: BaseModel
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def alive(self, peer: PeerAgent, timeout_s: float) -> bool: ...


class WrongKey(Exception):
    """The peer has another key than the one that its NodeHealth publishes."""


class HttpPeerClient:
    """node:     the agent's own, whose key ``identity`` is
    identity: proves this agent to a peer. Nothing is sent to a peer that does not prove the key that its NodeHealth
              publishes. None: over plain HTTP, as a stranger, for tests of what goes over the wire
    at_once:  limit on concurrent requests; more of them wait, and their timeout starts when they are sent
    on_wrong_key: called for each such peer
    """

    def __init__(
        self,
        node: str,
        identity: OwnIdentity | None,
        *,
        connect_s: float = CONNECT_S,
        answer_limit: int = ANSWER_LIMIT,
        at_once: int = AT_ONCE,
        on_wrong_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._secure = identity is not None
        self._timeouts = {"connect": connect_s, "read": None, "write": None, "pool": None}
        self._answer_limit = answer_limit
        self._free = asyncio.Semaphore(at_once)
        self._on_wrong_key = on_wrong_key
        # no keep-alive: queries of the fleet are rare, and idle connections to all nodes cost memory. So the transport
        # needs no close
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = Transport(tls=identity.client if identity else None, limits=limits, verify=_verify_key)

    async def get_json(self, peer: PeerAgent, path: str, params: Query, timeout_s: float) -> Any:
        """The decoded answer. timeout_s: for the whole request."""
        query = urlencode(list(params.items() if isinstance(params, Mapping) else params))
        return await self._json("GET", peer, f"{path}?{query}" if query else path, b"", timeout_s)

    async def post_json(self, peer: PeerAgent, path: str, body: BaseModel, timeout_s: float) -> Any:
        """As get_json, with a JSON body."""
        return await self._json("POST", peer, path, _encode(body), timeout_s)

    @asynccontextmanager
    async def stream(self, peer: PeerAgent, path: str, body: BaseModel) -> AsyncIterator[AsyncIterator[bytes]]:
        """POST ``body`` and yield the lines of the answer as they arrive. Leaving the context closes the connection.
        Only connecting has a timeout."""
        async with self._free, self._opened("POST", peer, path, _encode(body)) as response:
            if response.status_code >= 300:
                raise _refusal(peer, response.status_code, await _bounded(peer, response, ERROR_LIMIT))
            yield _lines(peer, response)

    async def alive(self, peer: PeerAgent, timeout_s: float) -> bool:
        """Whether it answers HTTP requests, with any status."""
        try:
            async with asyncio.timeout(timeout_s), self._opened("GET", peer, "/healthz", b""):
                return True
        except (PeerCallFailed, TimeoutError):
            return False

    async def _json(self, method: str, peer: PeerAgent, target: str, content: bytes, timeout_s: float) -> Any:
        async with self._free:
            try:
                async with asyncio.timeout(timeout_s):
                    status, raw = await self._once(method, peer, target, content)
            except TimeoutError as error:
                raise PeerCallFailed(
                    "NoAnswer", f"{peer_endpoint(peer)} did not answer within {timeout_s:g} s"
                ) from error
        if status >= 300:
            raise _refusal(peer, status, raw)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            shown = raw[:80].decode("utf-8", "replace")
            raise PeerCallFailed(
                "BadAnswer",
                f"{peer_endpoint(peer)} did not answer with JSON ({error}); the answer begins with {shown!r}",
            ) from error

    async def _once(self, method: str, peer: PeerAgent, target: str, content: bytes) -> tuple[int, bytes]:
        async with self._opened(method, peer, target, content) as response:
            limit = ERROR_LIMIT if response.status_code >= 300 else self._answer_limit
            return response.status_code, await _bounded(peer, response, limit)

    @asynccontextmanager
    async def _opened(
        self, method: str, peer: PeerAgent, target: str, content: bytes
    ) -> AsyncIterator[httpx2.Response]:
        if not peer.address:
            raise PeerCallFailed("NoAgent", f"no agent runs on node {peer.node}")
        headers = {"Accept": "application/json", "User-Agent": PEER_AGENT, "Connection": "close", NODE: self._node}
        if content:
            headers["Content-Type"] = "application/json"
        endpoint = self._endpoint(peer)
        extensions: dict[str, Any] = {"timeout": self._timeouts}
        if self._secure:
            extensions["sni_hostname"] = _server_name(peer.fingerprint)
        url = f"http{'s' if self._secure else ''}://{endpoint}{target}"
        request = httpx2.Request(method, url, headers=headers, content=content, extensions=extensions)
        try:
            response = await self._transport.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
        except WrongKey as error:
            self._on_wrong_key()
            raise PeerCallFailed(
                "WrongKey", f"{endpoint} does not have the key that NodeHealth {peer.node} publishes: {error}"
            ) from error
        except (httpx2.TransportError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise PeerCallFailed("Unreachable", f"cannot reach {endpoint}: {text}") from error

    def _endpoint(self, peer: PeerAgent) -> str:
        if not self._secure:
            return peer_endpoint(peer)
        if not peer.fingerprint or not peer.tls_port:
            raise PeerCallFailed(
                "NoKey",
                f"NodeHealth {peer.node} publishes no key of its agent: the agent has just started, has an older "
                "version, or the API server has an older CRD",
            )
        return peer_endpoint(msgspec.structs.replace(peer, port=peer.tls_port))


def _server_name(fingerprint: str) -> str:
    """The name for TLS, from which :func:`_verify_key` knows the expected key. A label of DNS has at most 63
    characters, so it has two."""
    return f"{fingerprint[:32]}.{fingerprint[32:]}"


def _verify_key(connection: ssl.SSLObject, server_name: str) -> None:
    found = peer_fingerprint(connection)
    if _server_name(found) != server_name:
        raise WrongKey(f"found {found[:16]}…, expected {server_name[:16]}…")


def peer_endpoint(peer: PeerAgent) -> str:
    """``ADDRESS:PORT`` as in a URL; empty if no agent runs there."""
    if not peer.address:
        return ""
    return f"[{peer.address}]:{peer.port}" if ":" in peer.address else f"{peer.address}:{peer.port}"


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - the async transport returns nothing else
    async for chunk in stream:
        yield chunk


async def _bounded(peer: PeerAgent, response: httpx2.Response, limit: int) -> bytes:
    """The body, of an error response only its first ``limit`` bytes. Raises PeerCallFailed for a longer answer."""
    raw = bytearray()
    async for chunk in _chunks(response):
        raw += chunk
        if len(raw) > limit:
            if response.status_code >= 300:
                break
            raise PeerCallFailed("BadAnswer", f"the answer of {peer_endpoint(peer)} has more than {limit} bytes")
    return bytes(raw)


async def _lines(peer: PeerAgent, response: httpx2.Response) -> AsyncIterator[bytes]:
    """The complete lines, without line feeds. An incomplete last line is dropped."""
    rest = b""
    async for chunk in _chunks(response):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_LIMIT:
            raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} sent a line of more than {LINE_LIMIT} bytes")
        for line in lines:
            if line:
                yield line


def _refusal(peer: PeerAgent, status: int, raw: bytes) -> PeerCallFailed:
    text = _error_message(raw[:ERROR_LIMIT])
    endpoint = peer_endpoint(peer)
    if status < 400:
        return PeerCallFailed("BadAnswer", f"{endpoint} answered with a redirect (HTTP {status})", status)
    if status == MISDIRECTED:
        return PeerCallFailed("WrongNode", f"{endpoint} is not the agent of {peer.node}: {text}", status)
    return PeerCallFailed("Refused", f"{endpoint} answered HTTP {status}: {text or 'no reason given'}", status)


class _ErrorDocument(msgspec.Struct):
    message: str


def _error_message(raw: bytes) -> str:
    """Errors are a line of text or, for unknown names, a JSON document with a message."""
    try:
        return msgspec.json.decode(raw, type=_ErrorDocument).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace").strip()


def _encode(body: BaseModel) -> bytes:
    return body.model_dump_json(by_alias=True).encode()

"""Client of the V-IPU proxy: each call is bounded in time and size and returns one of three values.

A failed call (nothing listens, HTML from a gateway) is a PartitionRefusal too: the job's status shows why it waits, and
the operator retries.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import httpx2
import msgspec

from muster_kube.api.errors import ConfigError
from muster_kube.controller.leader_client import NotLeading
from muster_operator.job.partition_api import (
    ControllerCapacity,
    PartitionCapacity,
    PartitionEntry,
    PartitionRefusal,
    PartitionRequest,
    RefusalReason,
)

TIMEOUT_S = 8.0  # for a whole call; the proxy answers a PUT within 2 s, or reports that it is in progress
ANSWER_LIMIT = 1 << 20  # bytes
CONNECTIONS = 16
_SHOWN = 200  # characters shown of an unreadable response

T = TypeVar("T")


class ProxyCredentials(Protocol):
    """See :mod:`muster_kube.api.credentials`."""

    async def header(self) -> str | None: ...

    def refused(self, header: str | None) -> bool: ...


class ProxyClient:
    """url: ``http://HOST:PORT[/PREFIX]``. may_write: whether this replica leads now. note: called with (call, outcome)
    after each call; outcome is ok, pending, or the refusal's ``why``. An async context manager."""

    def __init__(
        self,
        url: str,
        credentials: ProxyCredentials,
        *,
        may_write: Callable[[], bool],
        note: Callable[[str, str], None] = lambda _call, _outcome: None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._credentials = credentials
        self._may_write = may_write
        self._note = note
        self._timeout_s = timeout_s
        limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._http = httpx2.AsyncClient(trust_env=False, timeout=timeout_s, limits=limits, transport=transport)

    async def __aenter__(self) -> "ProxyClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def room(self, size: int) -> PartitionCapacity | PartitionRefusal:
        """Number of partitions of ``size`` IPUs that can be created now. Needs no token."""
        answer = await self._called("query", "POST", "/query", {"size": size}, PartitionCapacity, None)
        return answer[1] if isinstance(answer, tuple) else answer

    async def controllers(self) -> list[ControllerCapacity] | PartitionRefusal:
        """The IPUs of each V-IPU controller. Every replica may ask, and needs no token."""
        answer = await self._answer("GET", "/controllers", None, list[ControllerCapacity], None)
        self._note_outcome("controllers", answer)
        return answer[1] if isinstance(answer, tuple) else answer

    async def take(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        """Create the partition or take it over; returns an entry that is active or in progress."""
        answer = await self._called("take", "PUT", f"/partitions/{name}", wish, PartitionEntry, self._credentials)
        return answer[1] if isinstance(answer, tuple) else answer

    async def free(self, name: str, job: str) -> bool | PartitionRefusal:
        """Release the partition of the job with uid ``job``. True: it is gone; False: the removal is in progress."""
        path = f"/partitions/{name}?job={job}"
        answer = await self._called("free", "DELETE", path, None, msgspec.Raw, self._credentials)
        return answer[0] != 202 if isinstance(answer, tuple) else answer

    async def _called(
        self,
        call: str,
        method: str,
        path: str,
        body: object | None,
        kind: type[T],
        credentials: ProxyCredentials | None,
    ) -> tuple[int, T] | PartitionRefusal:
        if not self._may_write():
            raise NotLeading(path)
        answer = await self._answer(method, path, body, kind, credentials)
        self._note_outcome(call, answer)
        return answer

    def _note_outcome(self, call: str, answer: tuple[int, object] | PartitionRefusal) -> None:
        outcome = answer.why if isinstance(answer, PartitionRefusal) else "pending" if answer[0] == 202 else "ok"
        self._note(call, outcome)

    async def _answer(
        self, method: str, path: str, body: object | None, kind: type[T], credentials: ProxyCredentials | None
    ) -> tuple[int, T] | PartitionRefusal:
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(self._timeout_s):
                status, raw = await _authorized(
                    credentials, lambda header: self._exchange(method, path, content, header)
                )
        except TimeoutError:
            return self._refused("Unreachable", f"no response within {self._timeout_s:g} s")
        except httpx2.InvalidURL as error:
            return self._refused("Invalid", str(error))
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            return self._refused("Unreachable", " ".join(str(error).split()) or type(error).__name__)
        except ConfigError as error:
            return self._refused("Denied", str(error))
        if raw is None:
            return self._refused("Refused", f"HTTP {status} with a body of more than {ANSWER_LIMIT} bytes")
        return self._read(status, raw, kind)

    async def _exchange(self, method: str, path: str, content: bytes, header: str | None) -> tuple[int, bytes | None]:
        headers = {"Accept": "application/json"} | ({"Authorization": header} if header else {})
        if content:
            headers["Content-Type"] = "application/json"
        async with self._http.stream(method, self.url + path, content=content, headers=headers) as response:
            raw = bytearray()
            async for chunk in response.aiter_bytes():
                raw += chunk
                if len(raw) > ANSWER_LIMIT:
                    return response.status_code, None
            return response.status_code, bytes(raw)

    def _read(self, status: int, raw: bytes, kind: type[T]) -> tuple[int, T] | PartitionRefusal:
        try:
            if 200 <= status < 300:
                wanted: Any = kind
                return status, msgspec.json.decode(raw or b"null", type=wanted)
            return msgspec.json.decode(raw, type=PartitionRefusal)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            shown = " ".join(raw[:_SHOWN].decode("utf-8", "replace").split()) or "nothing"
            return self._refused("Refused" if status < 500 else "Unreachable", f"HTTP {status}: {shown}")

    def _refused(self, why: RefusalReason, message: str) -> PartitionRefusal:
        return PartitionRefusal(why=why, message=f"V-IPU proxy {self.url}: {message}")


async def _authorized(
    credentials: ProxyCredentials | None, exchange: Callable[[str | None], Awaitable[tuple[int, bytes | None]]]
) -> tuple[int, bytes | None]:
    """Retry once with a fresh token after a 401, which changed nothing. credentials: None sends no token."""
    if credentials is None:
        return await exchange(None)
    header = await credentials.header()
    status, raw = await exchange(header)
    if status == 401 and credentials.refused(header) and (fresh := await credentials.header()) != header:
        status, raw = await exchange(fresh)
    return status, raw

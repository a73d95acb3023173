"""Sends queries to a source over HTTP; the exception types classify errors.

The server's clock is read from the Date header. So a tainter with a wrong clock still asks for the right period.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Self

import httpcore2
import httpx2

from muster_kube.api.transport import Transport
from muster_tainter.policy.sections.sources import HttpSource

NS = 1_000_000_000
TIMEOUT_S = 30.0  # for a complete response
BODY_LIMIT = 32 << 20  # bytes of a response
ERROR_LIMIT = 2048  # bytes of an error response
TOKEN_LIMIT = 16 << 10
CONNECTIONS = 4
USER_AGENT = "muster-tainter"
SAME_CLOCK_S = 2.0  # Date has whole seconds, and responses take time


class SourceError(Exception):
    """The source did not respond as expected. retry_after_s: from its Retry-After header; 0: none."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceRefused(SourceError):
    """The request will fail again until somebody changes the query, the token or the address."""


class AnswerTooLarge(SourceError):
    """The response would be, or is, too large. most: number of lines that may be requested; 0: fewer than before."""

    def __init__(self, message: str, most: int = 0) -> None:
        super().__init__(message)
        self.most = most


class SourceClient:
    """A client for one server; an async context manager. now: seconds since the epoch, of this machine."""

    def __init__(
        self,
        where: HttpSource,
        *,
        now: Callable[[], float] = time.time,
        timeout_s: float = TIMEOUT_S,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self.where = where
        self._now = now
        self._timeout_s = timeout_s
        self._body_limit = body_limit
        self._ahead_s = 0.0  # the server's clock minus ours
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        """Raises SourceRefused for an invalid caFile."""
        tls = None
        if self.where.url.startswith("https://"):
            try:
                tls = ssl.create_default_context(cafile=self.where.ca_file)
            except (OSError, ValueError) as error:
                raise SourceRefused(f"caFile: {self.where.ca_file}: {error}") from error
        limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._transport = Transport(tls=tls, limits=limits, socket_options=())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.aclose()

    def now_ns(self) -> int:
        """The server's time."""
        return int((self._now() + self._ahead_s) * NS)

    async def get(self, path: str) -> tuple[bytearray, int]:
        """The body of the answer, and the server's time of the request in nanoseconds. path: with the query string,
        below the source's address. Raises SourceError."""
        if self._transport is None:
            raise RuntimeError("SourceClient is used outside of its `async with`")
        request = httpx2.Request("GET", f"{self.where.url}{path}", headers=self._headers())
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                asked = self._now()
                response = await self._transport.handle_async_request(request)
                try:
                    asked_ns = self._heed_date(response.headers.get("date"), asked, self._now())
                    most = self._body_limit if response.status_code == 200 else ERROR_LIMIT
                    stream = response.stream
                    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - what the async transport returns
                    async for chunk in stream:
                        body += chunk
                        if len(body) > most:
                            break
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise SourceError(f"{self.where.url}: no answer within {self._timeout_s:g} s") from error
        except (httpx2.TransportError, httpcore2.ProtocolError, httpcore2.NetworkError, OSError) as error:
            raise SourceError(f"{self.where.url}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise self.failure(response, bytes(body[:ERROR_LIMIT]))
        if len(body) > self._body_limit:
            raise AnswerTooLarge(f"{self.where.url}: response larger than {self._body_limit} bytes")
        return body, asked_ns

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        if self.where.tenant is not None:
            headers["X-Scope-OrgID"] = self.where.tenant
        if self.where.token_file is None:
            return headers
        try:
            with self.where.token_file.open("rb") as file:
                token = file.read(TOKEN_LIMIT).strip()
        except OSError as error:
            raise SourceRefused(f"tokenFile: {self.where.token_file}: {error.strerror or error}") from error
        if not token or not all(0x21 <= byte < 0x7F for byte in token):
            raise SourceRefused(
                f"tokenFile: {self.where.token_file}: expected one line of printable ASCII without spaces"
            )
        if self.where.user is None:
            headers["Authorization"] = f"Bearer {token.decode('ascii')}"
        else:
            both = f"{self.where.user}:".encode() + token
            headers["Authorization"] = f"Basic {base64.b64encode(both).decode('ascii')}"
        return headers

    def _heed_date(self, date: str | None, asked: float, answered: float) -> int:
        """The server's time of the request, in nanoseconds: from the Date header if it is far from ours. A time between
        request and response is latency, not a clock difference."""
        if date is not None:
            try:
                server_time = parsedate_to_datetime(date).timestamp()
            except (ValueError, OverflowError):
                server_time = asked
            ahead_s = server_time - min(max(server_time, asked), max(asked, answered))
            self._ahead_s = ahead_s if abs(ahead_s) > SAME_CLOCK_S else 0.0
        return int((asked + self._ahead_s) * NS)

    def failure(self, response: httpx2.Response, body: bytes) -> SourceError:
        """The error for an answer other than 200."""
        status = response.status_code
        text = " ".join(body.decode("utf-8", "replace").split())
        message = f"{self.where.url}: {status}: {text[:300] or 'no reason given'}"
        if status == 429 or status >= 500:
            return SourceError(message, _seconds(response.headers.get("retry-after")))
        if 300 <= status < 400:
            return SourceRefused(f"{message} (redirects are not followed: the token is for this address only)")
        return SourceRefused(message)


def _seconds(retry_after: str | None) -> float:
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit():
        return 0.0
    return min(float(retry_after[:9]), 600.0)

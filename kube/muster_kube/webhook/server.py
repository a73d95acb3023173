"""The HTTPS server of admission webhooks: receives AdmissionReviews, with limits for size and time.

Any client in the cluster network can send a review, so handling a review has no effect other than its response.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from muster_kube.http.server import make_server
from muster_kube.webhook.review import (
    AdmissionRequest,
    BadReview,
    ReviewAnswer,
    ReviewedRequest,
    read_request_head,
    read_review,
    write_review,
)
from muster_kube.webhook.served_certificate import CertificateSource

log = logging.getLogger(__name__)

# a BadReview from a reviewer is an HTTP 400 too: the request is not a review that it supports
Reviewer = Callable[[AdmissionRequest], Awaitable[ReviewAnswer]]
_Message = MutableMapping[str, Any]

# two objects of the largest size for etcd (1.5 MB each), as JSON with escapes
REVIEW_LIMIT = 8 << 20  # bytes
HELD_LIMIT = 64 << 20  # bytes of all concurrent reviews
# The API server closes idle connections after 90 s; it must close first, because it sends the requests
KEEP_ALIVE_S = 120
DEFAULT_S = 10.0  # the API's own timeoutSeconds
SHARE = 0.75  # of the API server's timeout, so that the response arrives in time
STOP_S = 5


class WebhookApp:
    """The ASGI application. reviewers: by path. An exception from a reviewer becomes an HTTP 500, so that the webhook's
    failurePolicy applies."""

    def __init__(self, reviewers: Mapping[str, Reviewer]) -> None:
        self._reviewers = dict(reviewers)
        self._held = 0

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        status, body, kind = 404, b"not found\n", b"text/plain; charset=utf-8"
        reviewer = self._reviewers.get(scope["path"])
        if scope["path"] == "/healthz":
            status, body = (200, b"ok\n") if scope["method"] in ("GET", "HEAD") else (405, b"expected GET\n")
        elif reviewer is not None and scope["method"] != "POST":
            status, body = 405, b"expected POST\n"
        elif reviewer is not None:
            status, body = await self._review(reviewer, scope, receive)
            if status == 200:
                kind = b"application/json"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _review(
        self, reviewer: Reviewer, scope: _Message, receive: Callable[[], Awaitable[_Message]]
    ) -> tuple[int, bytes]:
        """HTTP status and body."""
        limit_s = SHARE * review_timeout_s(scope["query_string"])
        held = _ReviewBody()
        reviewed: ReviewedRequest | None = None
        try:
            async with asyncio.timeout(limit_s):
                await self._read(receive, held)
                reviewed = read_request_head(held.content)
                if held.left_out:
                    return _too_large(reviewed, held)
                try:
                    reviewed, request = read_review(held.content)
                except BadReview as error:
                    if reviewed is None:
                        raise
                    # a rejection, as below: a client could make its object unreadable, for example by nesting it deeply
                    return 200, write_review(reviewed, ReviewAnswer(False, 400, "BadRequest", str(error)))
                answer = await reviewer(request)
            return 200, write_review(reviewed, answer)
        except TimeoutError:
            message = f"not decided within {limit_s:g} s"
            if reviewed is None:
                return 408, f"{message}\n".encode()
            return 200, write_review(reviewed, ReviewAnswer(False, 503, "ServiceUnavailable", message))
        except BadReview as error:
            return 400, f"{error}\n".encode()
        except _TooManyBytes as error:
            return 503, f"{error}\n".encode()
        finally:
            self._held -= len(held.content)

    async def _read(self, receive: Callable[[], Awaitable[_Message]], held: "_ReviewBody") -> None:
        """Read to the end even if the body is too large: clients read the response only after they have sent it all."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadReview("incomplete body")
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            taken = chunk[: REVIEW_LIMIT - len(held.content)]
            if self._held + len(taken) > HELD_LIMIT:
                raise _TooManyBytes(f"concurrent reviews already have {HELD_LIMIT} bytes, which is the limit")
            self._held += len(taken)
            held.content += taken
            held.left_out += len(chunk) - len(taken)


class _TooManyBytes(Exception):
    pass


class _ReviewBody:
    """The received part of a request's body."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.left_out = 0


def _too_large(reviewed: ReviewedRequest | None, held: _ReviewBody) -> tuple[int, bytes]:
    # a rejection, not a failure: otherwise a large object would pass a webhook with failurePolicy Ignore
    message = f"a review of {len(held.content) + held.left_out} bytes: expected at most {REVIEW_LIMIT}"
    if reviewed is None:
        return 413, f"{message}\n".encode()
    return 200, write_review(reviewed, ReviewAnswer(False, 413, "RequestEntityTooLarge", message))


def review_timeout_s(query: bytes) -> float:
    """The API server's timeout, which it sends in the query (``timeout=2s``), from the webhook's timeoutSeconds."""
    timeout = parse_qs(query.decode("latin-1")).get("timeout", [""])[0]
    match = re.fullmatch(r"([1-9]\d?)s", timeout, re.ASCII)
    return float(match[1]) if match else DEFAULT_S


async def serve_webhooks(webhooks: WebhookApp, certificates: CertificateSource, bound: socket.socket) -> None:
    """Serve until cancelled. ``bound``: a socket that does not listen yet, so that clients are refused immediately
    until there is a certificate."""
    caring = asyncio.create_task(certificates.run())
    ready = asyncio.create_task(certificates.ready.wait())
    server = make_server(webhooks, tls=certificates.ssl_context, keep_alive_s=KEEP_ALIVE_S, stop_s=STOP_S)
    serving: asyncio.Task[None] | None = None
    try:
        await asyncio.wait([caring, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            serving = asyncio.create_task(server.serve(sockets=[bound]))
            await asyncio.wait([caring, serving], return_when=asyncio.FIRST_COMPLETED)
        for task in (caring, serving):
            if task is not None and task.done():
                task.result()
        raise RuntimeError("the webhook server has ended unexpectedly")
    finally:
        if serving is not None:
            server.should_exit = True
            await asyncio.wait([serving], timeout=2 * STOP_S)
        for each in (caring, ready, serving):
            if each is not None:
                each.cancel()
        await asyncio.gather(*(each for each in (caring, ready, serving) if each), return_exceptions=True)

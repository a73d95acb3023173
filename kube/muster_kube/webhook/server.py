"""The HTTPS server behind admission webhooks: one AdmissionReview in, one answer out, bounded in size and in time.

Anybody in the cluster's network can send what the API server sends, so a review decides nothing but its own answer.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from muster_kube.process.lifetime import QuietServer
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

# BadReview of a reviewer, too, is an HTTP 400: what it was sent is nothing that it could judge
Reviewer = Callable[[AdmissionRequest], Awaitable[ReviewAnswer]]
_Message = dict[str, Any]

# Two objects that etcd takes (1.5 MB each), as JSON, with room for escapes
REVIEW_LIMIT = 8 << 20  # bytes
HELD_LIMIT = 64 << 20  # bytes of all reviews at once
CONNECTIONS = 256
# The API server's transport closes idle connections after 90 s: who closes first must be the one who writes
KEEP_ALIVE_S = 120
DEFAULT_S = 10.0  # the API's own timeoutSeconds
SHARE = 0.75  # of the API server's patience: an answer has to get back to it
STOP_S = 5


class WebhookApp:
    """The ASGI application. reviewers: by path. What a reviewer raises becomes an HTTP 500, and then the webhook's
    failurePolicy decides."""

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
            status, body = 200, b"ok\n"
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
        asked: ReviewedRequest | None = None
        try:
            async with asyncio.timeout(limit_s):
                await self._read(receive, held)
                asked = read_request_head(held.content)
                if held.left_out:
                    return _too_large(asked, held)
                asked, request = read_review(held.content)
                answer = await reviewer(request)
            return 200, write_review(asked, answer)
        except TimeoutError:
            message = f"not decided within {limit_s:g} s"
            if asked is None:
                return 408, f"{message}\n".encode()
            return 200, write_review(asked, ReviewAnswer(False, 503, "ServiceUnavailable", message))
        except BadReview as error:
            return 400, f"{error}\n".encode()
        except _TooManyBytes as error:
            return 503, f"{error}\n".encode()
        finally:
            self._held -= len(held.content)

    async def _read(self, receive: Callable[[], Awaitable[_Message]], held: "_ReviewBody") -> None:
        """To the end, also of what is too large: a client that is not heard out does not listen."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadReview("cut off")
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            taken = chunk[: REVIEW_LIMIT - len(held.content)]
            if self._held + len(taken) > HELD_LIMIT:
                raise _TooManyBytes(f"reviews of {HELD_LIMIT} bytes are under way, which is the most at once")
            self._held += len(taken)
            held.content += taken
            held.left_out += len(chunk) - len(taken)


class _TooManyBytes(Exception):
    pass


class _ReviewBody:
    """A request's body as far as it has come."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.left_out = 0


def _too_large(asked: ReviewedRequest | None, held: _ReviewBody) -> tuple[int, bytes]:
    # Told apart from a failure: else whoever writes enough could have a failurePolicy of Ignore let it through
    message = f"a review of {len(held.content) + held.left_out} bytes: expected at most {REVIEW_LIMIT}"
    if asked is None:
        return 413, f"{message}\n".encode()
    return 200, write_review(asked, ReviewAnswer(False, 413, "RequestEntityTooLarge", message))


def review_timeout_s(query: bytes) -> float:
    """How long the API server waits: it says so in the query, ``timeout=2s``, as of the webhook's timeoutSeconds."""
    said = parse_qs(query.decode("latin-1")).get("timeout", [""])[0]
    match = re.fullmatch(r"([1-9]\d?)s", said, re.ASCII)
    return float(match[1]) if match else DEFAULT_S


async def serve_webhooks(webhooks: WebhookApp, certificates: CertificateSource, bound: socket.socket) -> None:
    """Until cancelled. ``bound``: a socket that does not listen yet: until there is a certificate, who calls is to be
    refused at once rather than kept waiting."""
    caring = asyncio.create_task(certificates.run())
    ready = asyncio.create_task(certificates.ready.wait())
    server = QuietServer(
        uvicorn.Config(
            webhooks,
            ssl_context_factory=lambda *_: certificates.ssl_context,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
    )
    serving: asyncio.Task[None] | None = None
    try:
        await asyncio.wait([caring, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            serving = asyncio.create_task(server.serve(sockets=[bound]))
            await asyncio.wait([caring, serving], return_when=asyncio.FIRST_COMPLETED)
        for task in (caring, serving):
            if task is not None and task.done():
                task.result()
        raise RuntimeError("the webhooks' server has ended by itself")
    finally:
        if serving is not None:
            server.should_exit = True
            await asyncio.wait([serving], timeout=2 * STOP_S)
        for each in (caring, ready, serving):
            if each is not None:
                each.cancel()
        await asyncio.gather(*(each for each in (caring, ready, serving) if each), return_exceptions=True)

"""The proxy over HTTP: thin routes. Bodies are small and bounded; who may use /partitions is the API server's word."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.reviews import Identity
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest, RefusalReason
from muster_operator.proxy.partition_limits import is_power_of_two, list_sizes
from muster_operator.proxy.vipu_proxy import VipuProxy

BODY_LIMIT = 16 << 10  # bytes
REVIEW_S = 10.0
_STATUS: Mapping[RefusalReason, int] = {
    "Invalid": 400,
    "NotOurs": 409,
    "NoRoom": 409,
    "OldAttempt": 409,
    "Refused": 409,
    "Unreachable": 503,
    "Full": 503,
}


class Reviewer(Protocol):
    """muster_kube.api.reviews.Reviews."""

    async def who(self, token: str, audience: str = "") -> Identity | None: ...


class _EarlyResponse(Exception):
    def __init__(self, status: int, refusal: PartitionRefusal, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(refusal.message)
        self.response = _json(refusal, status, headers)


def make_app(proxy: VipuProxy, reviews: Reviewer, *, allowed: frozenset[tuple[str, str]]) -> Starlette:
    """allowed: (namespace, name) of the service accounts that may use /partitions."""
    capacity, store, intents = proxy.capacity, proxy.store, proxy.intents

    async def stats(_: Request) -> Response:
        """IPUs used and available, by namespace and in total."""
        return _json(await capacity.count_ipus())

    async def query(request: Request) -> Response:
        """{"size": N}: how many partitions of N IPUs there is room for now."""
        try:
            size = _parse_size(await _read_body(request), proxy.limits.max_ipus)
            return _json(await capacity.count_partitions(size))
        except _EarlyResponse as early:
            return early.response
        except ClientDisconnect:
            return Response(status_code=400)  # for nobody

    async def partitions(request: Request) -> Response:
        """For the operator: all of the tracker."""
        try:
            await admit(request)
        except _EarlyResponse as early:
            return early.response
        return _json(dict(store.entries))

    async def partition(request: Request) -> Response:
        """For the operator: PUT has a partition made, DELETE (?job=UID) has it removed, GET tells its entry."""
        name = request.path_params["name"]
        try:
            await admit(request)
            if request.method == "PUT":
                return _respond_to_put(await intents.request(name, _parse_request(await _read_body(request))))
            if request.method == "DELETE":
                return _respond_to_delete(await intents.release(name, request.query_params.get("job", "")))
        except _EarlyResponse as early:
            return early.response
        except ClientDisconnect:
            return Response(status_code=400)  # for nobody
        entry = store.find_entry(name)
        if entry is None:
            problem = store.unreadable.get(name)
            message = f"partition {name[:80]}: {problem or 'not in the tracker'}"
            return _json(PartitionRefusal(why="Refused", message=message), 409 if problem else 404)
        return _json(entry)

    async def health(_: Request) -> Response:
        """Tracker and quarantine are known; 503 says what is missing."""
        reason = proxy.explain_unhealthy()
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    async def prometheus(request: Request) -> Response:
        """For Prometheus: its text format, or OpenMetrics where that is accepted."""
        try:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version in it is no number
            encoder, content_type = choose_encoder("")
        return Response(encoder(proxy.metrics.registry), headers={"content-type": content_type})

    async def admit(request: Request) -> None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise _deny(401, "expected a header Authorization: Bearer TOKEN of the operator's service account")
        try:
            async with asyncio.timeout(REVIEW_S):
                identity = await reviews.who(token.strip())
        except (ApiError, ConfigError, TimeoutError) as error:
            message = f"who asks cannot be found out: {error or 'no answer of the API server'}"
            raise _EarlyResponse(503, PartitionRefusal(why="Unreachable", message=message)) from error
        if identity is None:
            raise _deny(401, "the API server does not know this token")
        if identity.service_account not in allowed:
            listed = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(allowed))
            raise _deny(403, f"{identity.user} may not use /partitions; allowed: {listed or 'nobody'}")

    return Starlette(
        routes=[
            Route("/stats", stats, methods=["GET"]),
            Route("/query", query, methods=["POST"]),
            Route("/partitions", partitions, methods=["GET"]),
            Route("/partitions/{name}", partition, methods=["GET", "PUT", "DELETE"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", prometheus, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _respond_in_words},
    )


def _respond_in_words(_: Request, error: Exception) -> Response:
    """404 and 405 in words."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    phrase = HTTPStatus(error.status_code).phrase
    return PlainTextResponse(f"{phrase}\n", error.status_code, headers=error.headers)


def _respond_to_put(answer: PartitionEntry | PartitionRefusal) -> Response:
    if isinstance(answer, PartitionRefusal):
        return _json(answer, _STATUS[answer.why])
    return _json(answer, 200 if answer.state == "active" else 202)


def _respond_to_delete(answer: PartitionEntry | PartitionRefusal | None) -> Response:
    if isinstance(answer, PartitionRefusal):
        return _json(answer, _STATUS[answer.why])
    return _json({}) if answer is None else _json(answer, 202)


class _QueryBody(msgspec.Struct, frozen=True):
    size: int


def _parse_size(body: bytes, max_ipus: int) -> int:
    expected = f'expected {{"size": N}} with N one of {list_sizes(max_ipus)}'
    try:
        size = msgspec.json.decode(body, type=_QueryBody).size
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _EarlyResponse(400, PartitionRefusal(why="Invalid", message=f"{error}; {expected}")) from error
    if not is_power_of_two(size) or size > max_ipus:
        raise _EarlyResponse(400, PartitionRefusal(why="Invalid", message=f"size: {size}; {expected}"))
    return size


def _parse_request(body: bytes) -> PartitionRequest:
    try:
        return msgspec.json.decode(body, type=PartitionRequest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        expected = "expected a JSON object with job, namespace, name, instance, attempt, size and gcds"
        raise _EarlyResponse(400, PartitionRefusal(why="Invalid", message=f"{error}; {expected}")) from error


async def _read_body(request: Request) -> bytes:
    """How long it may take is the connection's matter."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise _EarlyResponse(413, PartitionRefusal(why="Invalid", message=f"body: more than {BODY_LIMIT} bytes"))
    return body


def _deny(status: int, message: str) -> _EarlyResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return _EarlyResponse(status, PartitionRefusal(why="Refused", message=message), headers)


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")

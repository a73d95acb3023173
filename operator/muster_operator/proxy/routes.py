"""The proxy's HTTP routes. Bodies are bounded, and the API server reviews who may use /partitions."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Protocol

from fastapi import Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.reviews import Identity
from muster_kube.http.bad_request import explain_invalid
from muster_kube.http.metrics_page import METRICS, metrics_response
from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service
from muster_kube.process.lifetime import package_version
from muster_operator.job.partition_api import (
    PROXY_AUDIENCE,
    ControllerCapacity,
    IpuCount,
    PartitionCapacity,
    PartitionEntry,
    PartitionRefusal,
    RefusalReason,
)
from muster_operator.proxy.bodies import CapacityQuery, PartitionBody
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


class _Refused(Exception):
    def __init__(self, status: int, refusal: PartitionRefusal, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(refusal.message)
        self.response = StructResponse(refusal, status, headers=dict(headers or {}))


_BEARER = HTTPBearer(auto_error=False, description=f"of the operator's account, audience {PROXY_AUDIENCE}")
_REFUSAL = {"application/json": struct(PartitionRefusal)}
_REFUSED: dict[int | str, dict[str, Any]] = {
    401: described("no token, or an invalid one", _REFUSAL),
    403: described("the account may not use /partitions", _REFUSAL),
    503: described("the API server, the tracker or V-IPU does not respond", _REFUSAL),
}
_EXPECTED_REQUEST = f"expected a JSON object with {', '.join(PartitionBody.model_fields)}"
_ENTRY = {"application/json": struct(PartitionEntry)}


def make_app(proxy: VipuProxy, reviews: Reviewer, *, allowed: frozenset[tuple[str, str]]) -> Service:
    """allowed: (namespace, name) of the service accounts that may use /partitions."""
    capacity, store, intents = proxy.capacity, proxy.store, proxy.intents

    async def admit(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if credentials is None:
            raise _deny(401, f"expected a header Authorization: Bearer TOKEN, with a token for {PROXY_AUDIENCE}")
        try:
            async with asyncio.timeout(REVIEW_S):
                identity = await reviews.who(credentials.credentials, PROXY_AUDIENCE)
        except (ApiError, ConfigError, TimeoutError) as error:
            message = f"cannot check the token: {error or 'the API server does not respond'}"
            raise _Refused(503, PartitionRefusal(why="Unreachable", message=message)) from error
        if identity is None:
            raise _deny(401, f"the API server does not accept this token for the audience {PROXY_AUDIENCE}")
        if identity.service_account not in allowed:
            listed = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(allowed))
            raise _deny(403, f"{identity.user} may not use /partitions; allowed: {listed or 'nobody'}")

    service = Service(
        "muster vipu-proxy",
        package_version(),
        description="Manages partitions for IPUJobs. A refused request is answered with JSON: why, message.",
        refuse=_refuse,
        structs=(ControllerCapacity, IpuCount, PartitionCapacity, PartitionEntry, PartitionRefusal),
        body_limit=BODY_LIMIT,
    )

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, _Refused)  # noqa: S101 - registered for it
        return error.response

    async def invalid(request: Request, error: Exception) -> Response:
        """Bodies that are not JSON, or JSON of another form."""
        if isinstance(error, HTTPException):
            if error.status_code != 400:
                return await service.http_error(request, error)
            wrong = f"body: {error.detail}"
        else:
            assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
            wrong = explain_invalid(error, request)
        expected = _expect_size(proxy) if request.url.path == "/query" else _EXPECTED_REQUEST
        return _refuse(400, f"{wrong}; {expected}", {})

    service.add_exception_handler(_Refused, refused)
    service.add_exception_handler(RequestValidationError, invalid)
    service.add_exception_handler(HTTPException, invalid)

    @service.get("/stats")
    async def stats() -> dict[str, dict[str, int]]:
        """IPUs used and available, by namespace and in total."""
        return await capacity.count_ipus()

    @service.get(
        "/controllers",
        responses={
            200: described(
                "in the order in which partitions are placed",
                {"application/json": {"schema": {"type": "array", "items": struct(ControllerCapacity)["schema"]}}},
            )
        },
    )
    async def controllers() -> Response:
        """IPUs of each V-IPU controller: total, free, and the largest partition that can be created now."""
        return StructResponse(await capacity.count_each(proxy.limits.max_ipus))

    @service.post(
        "/query",
        responses={
            200: described("the number of partitions", {"application/json": struct(PartitionCapacity)}),
            400: described("what is wrong, and the allowed sizes", _REFUSAL),
        },
    )
    async def query(body: CapacityQuery) -> Response:
        """{"size": N}: how many partitions of N IPUs can be created now."""
        if not is_power_of_two(body.size) or body.size > proxy.limits.max_ipus:
            raise _Refused(400, PartitionRefusal(why="Invalid", message=f"size: {body.size}; {_expect_size(proxy)}"))
        return StructResponse(await capacity.count_partitions(body.size))

    @service.get(
        "/partitions",
        dependencies=[Depends(admit)],
        responses={
            200: described(
                "by name", {"application/json": {"schema": {"additionalProperties": struct(PartitionEntry)["schema"]}}}
            ),
            **_REFUSED,
        },
    )
    async def partitions() -> Response:
        """For the operator: the whole tracker."""
        return StructResponse(dict(store.entries))

    @service.put(
        "/partitions/{name}",
        dependencies=[Depends(admit)],
        responses={
            200: described("it is active", _ENTRY),
            202: described("it is being created", _ENTRY),
            400: described("what is wrong, and what is allowed", _REFUSAL),
            409: described(
                "it belongs to another job, there is no room, the attempt is outdated, or V-IPU refused", _REFUSAL
            ),
            **_REFUSED,
        },
    )
    async def put_partition(name: str, body: PartitionBody) -> Response:
        """For the operator: creates the partition, or lets a later attempt take it over; idempotent."""
        return _respond_to_put(await intents.request(name, body.request()))

    @service.delete(
        "/partitions/{name}",
        dependencies=[Depends(admit)],
        responses={
            200: described("it is gone", {"application/json": {"schema": {"type": "object"}}}),
            202: described("it is being removed", _ENTRY),
            400: described("the parameter job is missing", _REFUSAL),
            409: described("it belongs to another job, or V-IPU refused", _REFUSAL),
            **_REFUSED,
        },
    )
    async def delete_partition(
        name: str, job: Annotated[str, Query(description="uid of the job that owns the partition")] = ""
    ) -> Response:
        """For the operator: removes the partition of ?job=UID; idempotent."""
        return _respond_to_delete(await intents.release(name, job))

    @service.get(
        "/partitions/{name}",
        dependencies=[Depends(admit)],
        responses={
            200: described("its entry", _ENTRY),
            404: described("it is not in the tracker", _REFUSAL),
            409: described("its entry cannot be decoded", _REFUSAL),
            **_REFUSED,
        },
    )
    async def partition(name: str) -> Response:
        """For the operator: the partition's entry in the tracker."""
        entry = store.find_entry(name)
        if entry is None:
            problem = store.unreadable.get(name)
            message = f"partition {name[:80]}: {problem or 'not in the tracker'}"
            return StructResponse(PartitionRefusal(why="Refused", message=message), 409 if problem else 404)
        return StructResponse(entry)

    @service.get("/health", response_class=PlainTextResponse, responses={503: described("what is missing")})
    async def health() -> Response:
        """Tracker and quarantine are loaded; a 503 names what is missing."""
        reason = proxy.explain_unhealthy()
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    @service.get("/metrics", response_class=PlainTextResponse, responses=dict(METRICS))
    async def prometheus(request: Request) -> Response:
        """For Prometheus: its text format, or OpenMetrics if accepted."""
        return metrics_response(proxy.metrics.registry, request)

    return service


def _expect_size(proxy: VipuProxy) -> str:
    return f'expected {{"size": N}} with N one of {list_sizes(proxy.limits.max_ipus)}'


def _refuse(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An unknown path or method is answered in one word, as the original does; an invalid request in JSON."""
    if status in (404, 405):
        return PlainTextResponse(f"{HTTPStatus(status).phrase}\n", status, dict(headers))
    return StructResponse(PartitionRefusal(why="Invalid", message=message), status, headers=dict(headers))


def _respond_to_put(answer: PartitionEntry | PartitionRefusal) -> Response:
    if isinstance(answer, PartitionRefusal):
        return StructResponse(answer, _STATUS[answer.why])
    return StructResponse(answer, 200 if answer.state == "active" else 202)


def _respond_to_delete(answer: PartitionEntry | PartitionRefusal | None) -> Response:
    if isinstance(answer, PartitionRefusal):
        return StructResponse(answer, _STATUS[answer.why])
    return StructResponse({}) if answer is None else StructResponse(answer, 202)


def _deny(status: int, message: str) -> _Refused:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return _Refused(status, PartitionRefusal(why="Denied", message=message), headers)

"""The tainter's HTTP API: the state of the fleet, from its store, and volume trials for callers without permission.

No route changes a node.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from fastapi import Depends, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from muster_kube.api.objects import Node
from muster_kube.http.bad_request import check_query
from muster_kube.http.metrics_page import METRICS, metrics_response
from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus
from muster_kube.process.lifetime import package_version
from muster_kube.volume_trial import VolumeTrial
from muster_tainter.controller import Tainter
from muster_tainter.faults.desired_state import HEALTH_LABEL, is_managed
from muster_tainter.faults.messages import format_taint
from muster_tainter.faults.record.check_history import check_under_test
from muster_tainter.faults.record.node_record import Fault, read_record
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.http.job_nodes import Job, Labels, NodeLocator, ObjectQuery, object_queries
from muster_tainter.http.responses import BODY_LIMIT, BODY_S, JSON_STATUS, BearerToken, refusal_response, refuse
from muster_tainter.http.volume_trials import HttpRefusal, TrialAuthorizer, TrialRequest, VolumeTrials
from muster_tainter.metrics import TainterMetrics

_ORDER = {"fail": 0, "unknown": 1, "warn": 2, "pass": 3}
_SLICE = 200  # rows that are made and sent together


class NodeRow(msgspec.Struct, frozen=True, rename="camel"):
    """One node. health: value of its label; faults: number of open ones; message: of the first; testing: the running
    heavy check; due: heavy checks that wait for an idle node. Times are RFC 3339, or empty."""

    node: str
    health: str
    managed: bool
    taints: list[str]
    faults: int
    message: str
    observed_at: str
    testing: str
    idle_since: str
    due: tuple[str, ...]


class NodeFault(Fault, frozen=True, kw_only=True):
    """A fault and its node."""

    node: str


def _list_of(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "array", "items": struct(kind)["schema"]}}}


def make_app(
    tainter: Tainter,
    metrics: TainterMetrics,
    authorizer: TrialAuthorizer,
    trials: VolumeTrials,
    locator: NodeLocator,
) -> Service:
    """The service without the fleet page, which muster_tainter.page.routes.add_page adds."""
    service = Service(
        "muster tainter",
        package_version(),
        description="Errors are a Kubernetes Status as JSON: code, reason, message.",
        refuse=refuse,
        structs=(NodeRow, NodeFault, VolumeTrial),
        body_limit=BODY_LIMIT,
        body_s=BODY_S,
        responses={400: described("what is wrong, and what is allowed", JSON_STATUS)},
    )
    service.add_exception_handler(HttpRefusal, refusal_response)

    @service.get(
        "/api/nodes",
        dependencies=[Depends(check_query)],
        responses={
            200: described("the nodes, worst first", _list_of(NodeRow)),
            429: described("too many queries are waiting", JSON_STATUS),
            503: described("the API server is unreachable", JSON_STATUS),
        },
    )
    async def nodes(nodelabel: Labels | None = None, job: Job | None = None) -> Response:
        """Nodes with their health, taints, faults, tests, and since when they are idle: all, or those selected."""
        names = await _located(tainter.fleet, locator, object_queries(nodelabel, job))
        chosen = [name for name in _worst_first(tainter.fleet) if names is None or name in names]
        return stream_list(_node(tainter.fleet, node) for node in _present(tainter.fleet, chosen))

    @service.get("/api/faults", responses={200: described("the faults", _list_of(NodeFault))})
    async def faults() -> Response:
        """All open faults with their nodes."""
        return stream_list(
            {"node": node.metadata.name} | msgspec.to_builtins(fault)
            for node in _present(tainter.fleet, _worst_first(tainter.fleet))
            for fault in read_record(node).open
        )

    @service.post(
        "/api/trials/pvc",
        responses={
            200: described("the result of the trial", {"application/json": struct(VolumeTrial)}),
            401: described("no token, or an invalid one", JSON_STATUS),
            403: described("the caller is not the node's agent and has no permission to create pods", JSON_STATUS),
            429: described("other trials are running", JSON_STATUS),
            503: described("the API server is unreachable, or this replica is stopping", JSON_STATUS),
        },
    )
    async def pvc(request: Request, token: BearerToken, trial: TrialRequest) -> Response:
        """For agents: create a claim of a storage class, write to it, read it, and delete it. Requires a token."""
        user = await authorizer.admit(token, trial.node)
        try:
            return await _unless_gone(request, trials.run(trial, user))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody receives it

    @service.get("/metrics", responses=dict(METRICS), response_class=PlainTextResponse)
    async def prometheus(request: Request) -> Response:
        """Metrics in Prometheus' text format, or OpenMetrics if the client accepts it."""
        return metrics_response(metrics.registry, request)

    @service.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Liveness: the event loop runs."""
        return "ok\n"

    @service.get(
        "/readyz", response_class=PlainTextResponse, responses={503: described("what is missing, one item per line")}
    )
    async def readyz() -> Response:
        """Readiness: all watches are up, leader or not; 503 lists what is missing."""
        reasons = tainter.not_ready()
        return PlainTextResponse("".join(f"{reason}\n" for reason in reasons) or "ok\n", 503 if reasons else 200)

    return service


async def _located(
    fleet: WatchedFleet, locator: NodeLocator, queries: tuple[ObjectQuery, ...]
) -> frozenset[str] | None:
    """The selected nodes; None: all. Raises HttpRefusal."""
    names = await locator.names(queries)
    if names is not None and not fleet.node_watch.synced:
        raise HttpRefusal(503, "ServiceUnavailable", "the nodes are not listed yet", {"Retry-After": "1"})
    return names


async def _unless_gone(request: Request, work: Coroutine[Any, Any, object]) -> Response:
    """The result of ``work``, which is cancelled when the client disconnects."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return StructResponse(working.result())
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream_list(rows: Iterable[object]) -> StreamingResponse:
    """A JSON array. Rows are made while the client reads: one that reads slowly costs no memory, and taints are
    written meanwhile."""

    async def pieces() -> AsyncIterator[bytes]:
        left, before = iter(rows), b"["
        while slice_ := list(islice(left, _SLICE)):
            yield before + msgspec.json.encode(slice_)[1:-1]
            before = b","
            await asyncio.sleep(0)
        yield b"[]" if before == b"[" else b"]"

    return StreamingResponse(pieces(), media_type="application/json")


def _worst_first(fleet: WatchedFleet) -> list[str]:
    nodes = sorted(fleet.nodes.values(), key=lambda node: (_ORDER.get(_health(node), 1), node.metadata.name))
    return [node.metadata.name for node in nodes]


def _present(fleet: WatchedFleet, names: Iterable[str]) -> Iterator[Node]:
    """As they are when it is their turn."""
    for name in names:
        if (node := fleet.node(name)) is not None:
            yield node


def _health(node: Node) -> str:
    return node.metadata.labels.get(HEALTH_LABEL, "unknown")


def _node(fleet: WatchedFleet, node: Node) -> NodeRow:
    memory = read_record(node)
    health = fleet.health_of(node.metadata.name)
    status = health.status if isinstance(health, NodeHealth) else NodeHealthStatus()
    return NodeRow(
        node=node.metadata.name,
        health=_health(node),
        managed=is_managed(node),
        taints=[format_taint(taint) for taint in memory.ours],
        faults=sum(fault.rest or 1 for fault in memory.open),
        message=memory.open[0].message if memory.open else "",
        observed_at=status.observed_at,
        testing=(check_under_test(health) or "") if isinstance(health, NodeHealth) else "",
        idle_since=status.idle_since,
        due=status.due,
    )

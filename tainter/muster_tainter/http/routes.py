"""The tainter over HTTP: what it knows, read from its store when asked; and trials for those who may not make them.

Nothing here changes a node.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus
from muster_tainter.controller import Tainter
from muster_tainter.faults.check_history import check_under_test
from muster_tainter.faults.desired_state import HEALTH_LABEL, is_managed
from muster_tainter.faults.node_record import read_record
from muster_tainter.faults.wording import format_taint
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.http.job_nodes import NodeLocator, read_query
from muster_tainter.http.responses import json_response, read_bearer_token, read_body, refusal_response
from muster_tainter.http.volume_trials import HttpRefusal, TrialAuthorizer, VolumeTrials, read_trial_request
from muster_tainter.metrics import TainterMetrics

_ORDER = {"fail": 0, "unknown": 1, "warn": 2, "pass": 3}
_SLICE = 200  # rows made at once


def make_app(
    tainter: Tainter,
    metrics: TainterMetrics,
    authorizer: TrialAuthorizer,
    trials: VolumeTrials,
    locator: NodeLocator,
    page: Sequence[Route] = (),
) -> Starlette:
    """page: what :func:`muster_tainter.page.routes.page_routes` makes."""

    async def nodes(request: Request) -> Response:
        """Every node with health, taints, faults, tests, and since when it is idle; ?nodelabel= and ?job= choose."""
        try:
            names = await _located(tainter.fleet, locator, request)
        except HttpRefusal as refusal:
            return refusal_response(refusal)
        chosen = [node for node in _sorted(tainter.fleet) if names is None or node.metadata.name in names]
        rows = []
        for number, node in enumerate(chosen, 1):
            rows.append(_node(tainter.fleet, node))
            if number % _SLICE == 0:
                await asyncio.sleep(0)  # a taint does not wait for it
        return json_response(rows)

    async def faults(_: Request) -> Response:
        """Every fault that is open, with its node."""
        return json_response(
            [
                {"node": node.metadata.name} | msgspec.to_builtins(fault)
                for node in _sorted(tainter.fleet)
                for fault in read_record(node).open
            ]
        )

    async def prometheus(request: Request) -> Response:
        """For Prometheus: its text format, or OpenMetrics where that is accepted."""
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(metrics.registry), media_type=content_type)

    async def healthz(_: Request) -> Response:
        """The event loop gets round."""
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        """It watches what it goes by, leader or not; 503 says what is missing."""
        reasons = tainter.not_ready()
        if reasons:
            return PlainTextResponse("".join(f"{reason}\n" for reason in reasons), 503)
        return PlainTextResponse("ok\n")

    async def pvc(request: Request) -> Response:
        """For agents: a claim of a storage class is made, written to, read and removed. Takes a token."""
        try:
            token = read_bearer_token(request)
            asked = read_trial_request(await read_body(request))
            user = await authorizer.admit(token, asked.node)
            return await _unless_gone(request, trials.run(asked, user))
        except HttpRefusal as refusal:
            return refusal_response(refusal)
        except ClientDisconnect:
            return Response(status_code=400)  # for nobody

    return Starlette(
        routes=[
            *page,
            Route("/api/nodes", nodes),
            Route("/api/faults", faults),
            Route("/api/trials/pvc", pvc, methods=["POST"]),
            Route("/metrics", prometheus),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )


async def _located(fleet: WatchedFleet, locator: NodeLocator, request: Request) -> frozenset[str] | None:
    """The nodes that are asked for; None: all. Raises HttpRefusal."""
    names = await locator.names(read_query(_single_values(request)))
    if names is not None and not fleet.node_watch.synced:
        raise HttpRefusal(503, "ServiceUnavailable", "the nodes are not listed yet", {"Retry-After": "1"})
    return names


def _single_values(request: Request) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise HttpRefusal(400, "BadRequest", f"{name[:40]}: stands twice: expected it once")
        values[name] = value
    return values


async def _unless_gone(request: Request, work: Coroutine[Any, Any, object]) -> Response:
    """What comes of ``work``, which is cancelled when the caller hangs up."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return json_response(working.result())
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sorted(fleet: WatchedFleet) -> list[Node]:
    """The worst first."""
    return sorted(fleet.nodes.values(), key=lambda node: (_ORDER.get(_health(node), 1), node.metadata.name))


def _health(node: Node) -> str:
    return node.metadata.labels.get(HEALTH_LABEL, "unknown")


def _node(fleet: WatchedFleet, node: Node) -> dict[str, Any]:
    memory = read_record(node)
    health = fleet.health_of(node.metadata.name)
    status = health.status if isinstance(health, NodeHealth) else NodeHealthStatus()
    return {
        "node": node.metadata.name,
        "health": _health(node),
        "managed": is_managed(node),
        "taints": [format_taint(taint) for taint in memory.ours],
        "faults": sum(fault.rest or 1 for fault in memory.open),
        "message": memory.open[0].message if memory.open else "",
        "observedAt": status.observed_at,
        "testing": (check_under_test(health) or "") if isinstance(health, NodeHealth) else "",
        "idleSince": status.idle_since,
        "due": status.due,
    }

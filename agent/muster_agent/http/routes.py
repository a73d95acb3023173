"""The agent over HTTP: thin routes around node_agent.Agent.

Starlette alone, for its memory: see openapi.py.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import PEER_AGENT, NodeAnswer
from muster_agent.query.schema import PLACE as SCHEMA_PLACE
from muster_agent.query.status_query import BadQuery, StatusQuery, read_fields, read_query

if TYPE_CHECKING:
    from muster_agent.fleet.agent_fleet import AgentFleet
    from muster_agent.http.access import AccessControl

WRONG_NODE = "host: {}: this is the agent of {}, and one agent asks another for its own node only\n"


class QueryFleet(Protocol):
    """How a fleet is asked: fleet.fleet_query.query_fleet."""

    def __call__(self, agent: Agent, fleet: "AgentFleet", query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]: ...


def make_app(
    agent: Agent,
    metrics: AgentMetrics,
    fleet: "AgentFleet | None" = None,
    access: "AccessControl | None" = None,
    *,
    fleet_query: QueryFleet | None = None,
) -> Starlette:
    """The routes of one node's agent.

    fleet:     the other nodes; None: there are none to ask
    access:    who may do what; None: everything over loopback, and from elsewhere what disturbs nobody
    fleet_query: instead of fleet.fleet_query.query_fleet
    """

    async def status(request: Request) -> Response:
        from muster_agent.query.answer_stream import MEDIA_TYPES, AnswerStream, render_answer

        try:
            query = read_query(
                read_fields(request.scope["query_string"]), agent.checks, request.headers.get("accept", "")
            )
        except BadQuery as error:
            return PlainTextResponse(f"{error}\n", 400)
        needs = ", ".join([*(["force"] if query.force else []), *query.guarded])
        if (refused := await _check_access(request, needs, access)) is not None:
            return refused
        for_us = query.hosts == (agent.node,) and not query.job and not query.nodelabel
        if request.headers.get("user-agent") == PEER_AGENT and not for_us:
            return PlainTextResponse(WRONG_NODE.format(",".join(query.hosts or ("all nodes",))[:200], agent.node), 421)
        if fleet is None or for_us:
            try:
                _check_standalone(query, agent.node)
            except BadQuery as error:
                return PlainTextResponse(f"{error}\n", 400)
            nodes = _answer_locally(agent, query, _server_endpoint(request))
        else:
            nodes = _answer_from_fleet(agent, fleet, query, fleet_query)
        return AnswerStream(
            render_answer(nodes, query, agent.local.clock.monotonic), MEDIA_TYPES[query.fmt], _error_response
        )

    async def report(_request: Request) -> Response:
        from muster_agent.http.report import make_report

        return _json(make_report(agent))

    async def checks(_request: Request) -> Response:
        from muster_agent.http.report import list_declarations

        return _json(list_declarations(agent))

    async def prometheus(request: Request) -> Response:
        try:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version in it is no number
            encoder, content_type = choose_encoder("")
        return Response(encoder(metrics.registry), headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        reasons = agent.unready()
        return PlainTextResponse("".join(f"{reason}\n" for reason in reasons) or "ok\n", 503 if reasons else 200)

    async def openapi(_request: Request) -> Response:
        from muster_agent.http.openapi import openapi_document  # rarely asked for: not a byte of it before

        return _json(openapi_document(agent, await _nodes(agent, fleet)))

    async def schema(_request: Request) -> Response:
        from muster_agent.query.schema import status_schema

        return _json(status_schema())

    async def docs(_request: Request) -> Response:
        from muster_agent.http.openapi import html_page

        return Response(html_page(agent, await _nodes(agent, fleet)), media_type="text/html")

    routes = {
        "/status": status,
        "/report": report,
        "/checks": checks,
        "/metrics": prometheus,
        "/healthz": healthz,
        "/readyz": readyz,
        "/openapi.json": openapi,
        SCHEMA_PLACE: schema,
        "/docs": docs,
    }
    served = [Route(path, answer, methods=["GET"]) for path, answer in routes.items()]
    return Starlette(routes=[*served, Mount("/iperf", app=_IperfRoutes(agent, access))])


class _IperfRoutes:
    """What measuring the network takes on this node (POST /iperf/…), loaded when somebody measures. For agents and
    who may do as much: it sends traffic where it is told to."""

    def __init__(self, agent: Agent, access: "AccessControl | None") -> None:
        self._agent = agent
        self._access = access
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refused := await _check_access(Request(scope), "iperf", self._access)) is not None:
            await refused(scope, receive, send)
            return
        if self._router is None:
            from muster_agent.fleet.iperf_routes import routes

            self._router = Router(routes=routes(self._agent))
        scope["root_path"] = scope["root_path"].removesuffix("/iperf")  # its routes name the whole path
        await self._router(scope, receive, send)


async def _answer_locally(agent: Agent, query: StatusQuery, endpoint: str) -> AsyncGenerator[NodeAnswer, None]:
    from muster_agent.query.local_answer import answer_locally

    yield await answer_locally(agent, query, endpoint)


async def _answer_from_fleet(
    agent: Agent, fleet: "AgentFleet", query: StatusQuery, fleet_query: QueryFleet | None
) -> AsyncGenerator[NodeAnswer, None]:
    from muster_agent.fleet.fleet_query import query_fleet

    async with aclosing((fleet_query or query_fleet)(agent, fleet, query)) as nodes:
        async for node in nodes:
            yield node


async def _check_access(request: Request, needs: str, access: "AccessControl | None") -> Response | None:
    """``needs``: what of it takes a right; empty: nothing."""
    from muster_agent.http.access import AccessControl, AccessDenied

    client = request.client.host if request.client is not None else None
    try:
        caller = await (access or AccessControl(None)).caller(request.headers, client, needs=needs)
    except AccessDenied as denied:
        headers = {"www-authenticate": "Bearer"} if denied.status == 401 else {}
        return PlainTextResponse(f"{denied.message}\n", denied.status, headers)
    if needs and not caller.trusted:
        return PlainTextResponse(f"{needs}: takes a right that this caller does not have\n", 403)
    return None


def _check_standalone(query: StatusQuery, node: str) -> None:
    """Raises BadQuery for nodes that an agent without a cluster does not know."""
    others = [host for host in query.hosts or () if host != node]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise BadQuery(f"host: {shown}: this agent is in no cluster and knows its own node only; expected {node}")
    for name, value in (("job", query.job), ("nodelabel", query.nodelabel)):
        if value:
            raise BadQuery(f"{name}: {value!r}: this agent is in no cluster and knows its own node only; expected none")


def _error_response(error: Exception) -> Response | None:
    """What is told when it shows that the fleet cannot be asked so."""
    if isinstance(error, BadQuery):
        return PlainTextResponse(f"{error}\n", 400)
    from muster_agent.fleet.members import BadNodeSelection, FleetUnknown

    if isinstance(error, BadNodeSelection):
        return PlainTextResponse(f"{error}\n", 400)
    if isinstance(error, FleetUnknown):
        return PlainTextResponse(f"{error}\n", 503)
    return None


async def _nodes(agent: Agent, fleet: "AgentFleet | None") -> Collection[str] | None:
    """Those that may be named; None: nobody knows now."""
    if fleet is None:
        return [agent.node]
    from muster_agent.fleet.members import FleetUnknown

    try:
        return (await fleet.members.list_members()).keys()
    except FleetUnknown:
        return None


def _server_endpoint(request: Request) -> str:
    host, port = request.scope.get("server") or ("localhost", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _json(value: Mapping[str, object] | msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

"""The agent over HTTP: thin routes around node_agent.Agent."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import PlainTextResponse, Response

from muster_agent.fleet.iperf_routes import IPERF_STRUCTS, iperf_router
from muster_agent.fleet.members import BadNodeSelection, FleetUnknown
from muster_agent.http.access import AccessControl, AccessDenied
from muster_agent.http.report import AgentReport, Declarations, list_declarations, make_report
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import PEER_AGENT, Ending, NodeAnswer, StatusDocument
from muster_agent.query.status_query import BadQuery, StatusParameters, StatusQuery, read_query
from muster_kube.http.bad_request import single_values
from muster_kube.http.metrics_page import METRICS, metrics_response
from muster_kube.http.responses import TEXT, StructResponse, described, struct
from muster_kube.http.service import Service

if TYPE_CHECKING:
    from muster_agent.fleet.agent_fleet import AgentFleet

BODY_LIMIT = 8 << 10  # bytes; 64 tests of the network are 6 KB
WRONG_NODE = "host: {}: this is the agent of {}, and one agent asks another for its own node only\n"
STRUCTS = (StatusDocument, Ending, AgentReport, Declarations, *IPERF_STRUCTS)
_STATUS: dict[int | str, dict[str, Any]] = {
    200: described(
        "what was found; sent as nodes answer",
        {
            **TEXT,
            "application/json": struct(StatusDocument),
            "application/jsonl": {
                "schema": {"type": "string", "description": "lines: Ending the last, NodeAnswer the others"}
            },
        },
    ),
    400: described("what is wrong with the query, and what is allowed"),
    401: described("what was asked for takes a token: force, files of a node, targets of its packets"),
    403: described("the token's user has no right to it"),
    421: described("an agent asked another for a node that is not its own"),
    503: described("nobody can be asked now which nodes there are, or who the caller is"),
}


class QueryFleet(Protocol):
    """How a fleet is asked: fleet.fleet_query.query_fleet."""

    def __call__(self, agent: Agent, fleet: "AgentFleet", query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]: ...


class AgentService(Service):
    """The service of one node's agent, without its routes."""

    def __init__(self, agent: Agent, fleet: "AgentFleet | None") -> None:
        super().__init__(
            f"muster agent of node {agent.node}",
            agent.identity.version,
            structs=STRUCTS,
            complete=self._complete,
            body_limit=BODY_LIMIT,
        )
        self._agent = agent
        self._fleet = fleet
        self.add_exception_handler(AccessDenied, _denied)
        self.add_exception_handler(BadNodeSelection, _bad_selection)
        self.add_exception_handler(FleetUnknown, _fleet_unknown)

    def openapi(self) -> dict[str, Any]:
        """With the parameters of the checks."""
        from muster_agent.http.check_parameters import complete_parameters

        document = super().openapi()
        complete_parameters(document["paths"]["/status"]["get"], list(self._agent.checks.values()))
        return document

    async def _complete(self, document: dict[str, Any]) -> None:
        """With the nodes there are."""
        from muster_agent.http.check_parameters import complete_nodes

        nodes: Collection[str] | None = [self._agent.node]
        if self._fleet is not None:
            try:
                nodes = (await self._fleet.members.list_members()).keys()
            except FleetUnknown:
                nodes = None
        complete_nodes(document["paths"]["/status"]["get"], nodes)


def make_app(
    agent: Agent,
    metrics: AgentMetrics,
    fleet: "AgentFleet | None" = None,
    access: AccessControl | None = None,
    *,
    fleet_query: QueryFleet | None = None,
) -> AgentService:
    """The routes of one node's agent.

    fleet:     the other nodes; None: there are none to ask
    access:    who may do what; None: everything over loopback, and from elsewhere what disturbs nobody
    fleet_query: instead of fleet.fleet_query.query_fleet
    """
    app = AgentService(agent, fleet)
    doorkeeper = access or AccessControl(None)

    @app.get("/status", dependencies=[Depends(single_values)], response_class=Response, responses=_STATUS)
    async def status(request: Request, given: Annotated[StatusParameters, Query()]) -> Response:
        """Runs checks on one node, on some or on all, and reports what they find."""
        from muster_agent.query.answer_stream import MEDIA_TYPES, AnswerStream, render_answer

        query = read_query(given, agent.checks, request.headers.get("accept", ""))
        await _check_access(request, ", ".join([*(["force"] if query.force else []), *query.guarded]), doorkeeper)
        for_us = query.hosts == (agent.node,) and not query.job and not query.nodelabel
        if request.headers.get("user-agent") == PEER_AGENT and not for_us:
            return PlainTextResponse(WRONG_NODE.format(",".join(query.hosts or ("all nodes",))[:200], agent.node), 421)
        if fleet is None or for_us:
            _check_standalone(query, agent.node)
            nodes = _answer_locally(agent, query, _server_endpoint(request))
        else:
            nodes = _answer_from_fleet(agent, fleet, query, fleet_query)
        return AnswerStream(render_answer(nodes, query, agent.local.clock.monotonic), MEDIA_TYPES[query.fmt])

    @app.get("/report", responses={200: described("as it is now", {"application/json": struct(AgentReport)})})
    async def report() -> Response:
        """The last results and the history of verdicts. Runs nothing."""
        return StructResponse(make_report(agent))

    @app.get("/checks", responses={200: described("as it is now", {"application/json": struct(Declarations)})})
    async def checks() -> Response:
        """Every check of this agent, with its parameters."""
        return StructResponse(list_declarations(agent))

    @app.get("/schema/status.json")
    async def schema() -> Response:
        """JSON Schema of what /status answers with format=json."""
        return StructResponse(_status_schema())

    @app.get("/metrics", response_class=PlainTextResponse, responses=dict(METRICS))
    async def prometheus(request: Request) -> Response:
        """For Prometheus: its text format, or OpenMetrics where that is accepted."""
        return metrics_response(metrics.registry, request)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """The event loop runs."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: described("why it is not")})
    async def readyz() -> Response:
        """The published verdict is up to date."""
        reasons = agent.unready()
        return PlainTextResponse("".join(f"{reason}\n" for reason in reasons) or "ok\n", 503 if reasons else 200)

    async def may_measure(request: Request) -> None:
        await _check_access(request, "iperf", doorkeeper)

    app.include_router(iperf_router(agent), dependencies=[Depends(may_measure)])
    return app


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


async def _check_access(request: Request, needs: str, access: AccessControl) -> None:
    """``needs``: what of it takes a right; empty: nothing. Raises AccessDenied."""
    client = request.client.host if request.client is not None else None
    caller = await access.caller(request.headers, client, needs=needs)
    if needs and not caller.trusted:
        raise AccessDenied(403, f"{needs}: takes a right that this caller does not have")


def _check_standalone(query: StatusQuery, node: str) -> None:
    """Raises BadQuery for nodes that an agent without a cluster does not know."""
    others = [host for host in query.hosts or () if host != node]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise BadQuery(f"host: {shown}: this agent is in no cluster and knows its own node only; expected {node}")
    for name, value in (("job", query.job), ("nodelabel", query.nodelabel)):
        if value:
            raise BadQuery(f"{name}: {value!r}: this agent is in no cluster and knows its own node only; expected none")


async def _denied(_: Request, error: Exception) -> Response:
    assert isinstance(error, AccessDenied)  # noqa: S101 - registered for it
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return PlainTextResponse(f"{error.message}\n", error.status, headers)


async def _bad_selection(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400)


async def _fleet_unknown(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


def _status_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of format=json. A line of format=jsonl is ``#/$defs/NodeAnswer``, the last one
    ``#/$defs/Ending``."""
    _, definitions = msgspec.json.schema_components([StatusDocument, Ending])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "answer of muster's /status",
        "$ref": "#/$defs/StatusDocument",
        "$defs": definitions,
    }


def _server_endpoint(request: Request) -> str:
    host, port = request.scope.get("server") or ("localhost", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

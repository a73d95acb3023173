"""The agent's HTTP routes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.routing import APIRoute

from muster_agent.fleet.iperf_routes import IPERF_STRUCTS, iperf_router
from muster_agent.fleet.members import BadNodeSelection, FleetUnknown
from muster_agent.http.access import AccessControl, AccessDenied
from muster_agent.http.report import AgentReport, Declarations, list_declarations, make_report
from muster_agent.identity.tls_protocol import sender_fingerprint
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.query.node_answer import PEER_AGENT, Ending, NodeAnswer, StatusDocument
from muster_agent.query.status_query import (
    NETWORK_CHECK,
    BadQuery,
    StatusParameters,
    StatusQuery,
    UnknownName,
    accepted_format,
    read_query,
)
from muster_checks.base.declaration import Cost
from muster_kube.http.bad_request import check_repeated
from muster_kube.http.metrics_page import METRICS, metrics_response
from muster_kube.http.responses import TEXT, StructResponse, described, struct
from muster_kube.http.service import Service

if TYPE_CHECKING:
    from muster_agent.fleet.agent_fleet import AgentFleet

BODY_LIMIT = 8 << 10  # bytes; 64 tests of the network are 6 KB
# Autopilot's routes for one check each: on the node of the agent that gets the request, iperf between all nodes
CHECK_ROUTES = ("dcgm", "gpumem", "gpupower", NETWORK_CHECK, "pciebw", "ping", "pvc", "remapped")
WRONG_NODE = "host: {}: this is the agent of {}; agents may query each other only for their own node\n"


class UnknownNameDocument(msgspec.Struct, frozen=True):
    """The 400 for an unknown check or parameter.

    message: for people
    kind:    ``check`` or ``parameter``
    valid:   every name that exists
    """

    message: str
    kind: str
    valid: tuple[str, ...]


STRUCTS = (StatusDocument, Ending, AgentReport, Declarations, UnknownNameDocument, *IPERF_STRUCTS)
_STATUS: dict[int | str, dict[str, Any]] = {
    200: described(
        "the results; sent as the nodes answer",
        {
            **TEXT,
            "application/json": struct(StatusDocument),
            "application/jsonl": {
                "schema": {"type": "string", "description": "one NodeAnswer per line; the last line is an Ending"}
            },
        },
    ),
    400: described(
        "the query is invalid; the text says why, and what is allowed. For an unknown check or parameter and a query "
        "for JSON, a document with the valid names",
        {**TEXT, "application/json": struct(UnknownNameDocument)},
    ),
    401: described(
        "a token is required: for heavy checks, for force, for files of a node, or for targets of its packets"
    ),
    403: described("the token's user lacks the permission"),
    421: described("another agent queried this one for a node that is not its own"),
    503: described("the nodes of the fleet or the caller's identity cannot be determined now"),
}


class QueryFleet(Protocol):
    """Signature of fleet.fleet_query.query_fleet."""

    def __call__(self, agent: Agent, fleet: "AgentFleet", query: StatusQuery) -> AsyncGenerator[NodeAnswer, None]: ...


class AgentService(Service):
    """The HTTP service of an agent, without its routes."""

    def __init__(self, agent: Agent, fleet: "AgentFleet | None") -> None:
        super().__init__(
            f"muster agent of node {agent.node}",
            agent.identity.version,
            structs=STRUCTS,
            body_limit=BODY_LIMIT,
        )
        self._agent = agent
        self._fleet = fleet
        self.add_exception_handler(UnknownName, _unknown_name)
        self.add_exception_handler(AccessDenied, _denied)
        self.add_exception_handler(BadNodeSelection, _bad_selection)
        self.add_exception_handler(FleetUnknown, _fleet_unknown)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document with the parameters of the checks."""
        from muster_agent.http.check_parameters import complete_parameters, restrict_to_node

        document = super().openapi()
        complete_parameters(document["paths"]["/status"]["get"], list(self._agent.checks.values()))
        if self._fleet is None:
            restrict_to_node(document["paths"]["/status"]["get"], self._agent.node)
        return document


def make_app(
    agent: Agent,
    metrics: AgentMetrics,
    fleet: "AgentFleet | None" = None,
    access: AccessControl | None = None,
    *,
    fleet_query: QueryFleet | None = None,
) -> AgentService:
    """The service of one node's agent.

    fleet:     the other nodes; None: queries for other nodes are rejected
    access:    authorizes callers; None: allows everything over loopback, and light requests from elsewhere
    fleet_query: replaces fleet.fleet_query.query_fleet
    """
    app = AgentService(agent, fleet)
    access = access or AccessControl(None)

    @app.get("/", response_class=PlainTextResponse)
    async def index() -> str:
        """Lists the routes."""
        return _index(app, agent)

    async def answer(request: Request, given: StatusParameters) -> Response:
        from muster_agent.query.answer_stream import MEDIA_TYPES, AnswerStream, render_answer

        query = read_query(given, agent.checks, request.headers.get("accept", ""))
        await _check_access(request, ", ".join(_protected(query, access)), access)
        for_us = query.hosts == (agent.node,) and not query.job and not query.nodelabel
        if request.headers.get("user-agent") == PEER_AGENT and not for_us:
            return PlainTextResponse(WRONG_NODE.format(",".join(query.hosts or ("all nodes",))[:200], agent.node), 421)
        if fleet is None or for_us:
            _check_standalone(query, agent.node)
            nodes = _answer_locally(agent, query, _server_endpoint(request))
        else:
            nodes = _answer_from_fleet(agent, fleet, query, fleet_query)
        return AnswerStream(render_answer(nodes, query, agent.local.clock.monotonic), MEDIA_TYPES[query.fmt])

    @app.get("/status", dependencies=[Depends(check_repeated)], response_class=Response, responses=_STATUS)
    async def status(request: Request, given: Annotated[StatusParameters, Query()]) -> Response:
        """Runs checks on one, several or all nodes and returns the results."""
        return await answer(request, given)

    async def one_check(request: Request, given: Annotated[StatusParameters, Query()]) -> Response:
        return await answer(request, _of_route(request.url.path.removeprefix("/"), given, agent.node))

    for name in (each for each in CHECK_ROUTES if each in agent.checks):
        app.get(
            f"/{name}",
            dependencies=[Depends(check_repeated)],
            response_class=Response,
            description=f"The same as /status?check={name}, as in Autopilot",
            include_in_schema=False,  # the parameters are those of /status
        )(one_check)

    @app.get("/report", responses={200: described("the current state", {"application/json": struct(AgentReport)})})
    async def report() -> Response:
        """Returns the last result and the history of verdicts of each check, without running any."""
        return StructResponse(make_report(agent))

    @app.get("/checks", responses={200: described("the current state", {"application/json": struct(Declarations)})})
    async def checks() -> Response:
        """Lists the checks of this agent with their parameters."""
        return StructResponse(list_declarations(agent))

    @app.get("/schema/status.json")
    async def schema() -> Response:
        """Returns the JSON Schema of /status with format=json."""
        return StructResponse(_status_schema())

    @app.get("/metrics", response_class=PlainTextResponse, responses=dict(METRICS))
    async def prometheus(request: Request) -> Response:
        """Returns metrics in the text format of Prometheus, or OpenMetrics if the client accepts it."""
        return metrics_response(metrics.registry, request)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Liveness probe: answers while the event loop runs."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: described("the reasons")})
    async def readyz() -> Response:
        """Readiness probe: answers 200 if the published verdict is up to date, else 503 with the reasons."""
        reasons = agent.unready()
        return PlainTextResponse("".join(f"{reason}\n" for reason in reasons) or "ok\n", 503 if reasons else 200)

    async def may_measure(request: Request) -> None:
        await _check_access(request, "iperf", access)

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


def _of_route(check: str, given: StatusParameters, node: str) -> StatusParameters:
    """The query of one of CHECK_ROUTES. Raises BadQuery."""
    if given.check is not None:
        raise BadQuery(f"check: the path /{check} names the check: leave it out, or request /status")
    selects = given.host or given.job or given.nodelabel or check == NETWORK_CHECK
    return given.model_copy(update={"check": (check,), "host": given.host if selects else (node,)})


async def _check_access(request: Request, needs: str, access: AccessControl) -> None:
    """needs: the parts of the request that need a permission; empty: none. Raises AccessDenied."""
    client = request.client.host if request.client is not None else None
    caller = await access.caller(request.headers, client, needs=needs, fingerprint=sender_fingerprint(request))
    if needs and not caller.trusted:
        raise AccessDenied(403, f"{needs}: permission denied: this caller may not use it")


def _protected(query: StatusQuery, access: AccessControl) -> list[str]:
    """The parts of the query that need a permission."""
    heavy = [running.name for running, _ in query.checks if running.check.cost is Cost.HEAVY]
    named = [f"check={','.join(heavy)}"] if heavy and query.named and not access.open_heavy_checks else []
    return [*named, *(["force"] if query.force else []), *query.guarded]


def _check_standalone(query: StatusQuery, node: str) -> None:
    """Raises BadQuery if the query needs other nodes, which an agent outside a cluster does not know."""
    others = [host for host in query.hosts or () if host != node]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise BadQuery(f"host: {shown}: this agent runs without a cluster and knows only its own node; expected {node}")
    for name, value in (("job", query.job), ("nodelabel", query.nodelabel)):
        if value:
            raise BadQuery(
                f"{name}: {value!r}: this agent runs without a cluster and knows only its own node; leave {name} out"
            )


def _index(app: AgentService, agent: Agent) -> str:
    """The routes for people. Those between agents (POST) are left out."""
    routes = [
        (each.path, each.description)
        for each in app.routes
        if isinstance(each, APIRoute) and "GET" in (each.methods or ())
    ]
    lines = [f"{path:<22}{text.partition('. ')[0].removesuffix('.')}" for path, text in routes if path and text]
    lines += [f"{'/docs':<22}Documents all routes and parameters", f"{'/openapi.json':<22}The same as OpenAPI 3.1"]
    return "\n".join([f"muster agent of node {agent.node}, version {agent.identity.version}", "", *lines, ""])


async def _unknown_name(request: Request, error: Exception) -> Response:
    assert isinstance(error, UnknownName)  # noqa: S101 - registered for it
    wanted = request.query_params.get("format") or accepted_format(request.headers.get("accept", ""))
    if wanted == "text":
        rest = "" if error.shown == error.valid else ", and the parameters of the checks"
        return PlainTextResponse(f"{error}\nvalid {error.kind}s: {', '.join(error.shown)}{rest}\n", 400)
    return StructResponse(UnknownNameDocument(str(error), error.kind, error.valid), 400)


async def _denied(_: Request, error: Exception) -> Response:
    assert isinstance(error, AccessDenied)  # noqa: S101 - registered for it
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return PlainTextResponse(f"{error.message}\n", error.status, headers)


async def _bad_selection(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400)


async def _fleet_unknown(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


def _status_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of format=json. The lines of format=jsonl are ``#/$defs/NodeAnswer``, and the last one is
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

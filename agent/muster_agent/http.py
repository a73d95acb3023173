"""The agent over HTTP: thin routes around core.Agent.

Starlette alone, for its memory: see openapi.py.
"""

import asyncio
from ipaddress import ip_address
from typing import Any

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster_agent.asking import Asked, BadQuery, read_query
from muster_agent.core import Agent
from muster_agent.layout import node_status, whole_answer
from muster_agent.metrics import Metrics
from muster_agent.running import Running
from muster_checks.declaration import Cost
from muster_checks.vocabulary import Result, worst

# a port-forward comes over loopback, and is guarded by RBAC already
HEAVY_REFUSED = (
    "check: {}: heavy checks would disturb a job that runs here; they are taken over loopback only "
    "(kubectl port-forward, or muster check on the node)\n"
)
GUARDED_REFUSED = (
    "{}: names files of this node, or where its packets go; taken over loopback only, or in the agent's configuration\n"
)


def make_app(agent: Agent, metrics: Metrics) -> Starlette:
    """The routes of one node's agent."""

    async def status(request: Request) -> Response:
        try:
            asked = read_query(
                request.query_params.multi_items(), agent.checks, agent.node, request.headers.get("accept", "")
            )
        except BadQuery as error:
            return PlainTextResponse(f"{error}\n", 400)
        heavy = [running.name for running, _ in asked.checks if running.check.cost is Cost.HEAVY]
        if heavy and not _loopback(request):
            return PlainTextResponse(HEAVY_REFUSED.format(", ".join(heavy)), 403)
        if asked.guarded and not _loopback(request):
            return PlainTextResponse(GUARDED_REFUSED.format(", ".join(asked.guarded)), 403)
        started = agent.context.clock()
        results = await _run_all(agent, asked)
        runtime_s = agent.context.clock() - started
        if asked.as_json:
            return _json(_as_json(agent, results, runtime_s))
        return PlainTextResponse(_as_text(agent, request, asked, results, runtime_s))

    async def report(_request: Request) -> Response:
        return _json(_report(agent))

    async def checks(_request: Request) -> Response:
        return _json({"checks": [_declaration(running) for running in agent.checks.values()]})

    async def prometheus(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(metrics.registry), headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        reasons = agent.unready()
        return PlainTextResponse("".join(f"{reason}\n" for reason in reasons) or "ok\n", 503 if reasons else 200)

    async def openapi(_request: Request) -> Response:
        from muster_agent.openapi import document  # rarely asked for: not a byte of it before

        return _json(document(agent))

    async def docs(_request: Request) -> Response:
        from muster_agent.openapi import page

        return Response(page(agent), media_type="text/html")

    routes = {
        "/status": status,
        "/report": report,
        "/checks": checks,
        "/metrics": prometheus,
        "/healthz": healthz,
        "/readyz": readyz,
        "/openapi.json": openapi,
        "/docs": docs,
    }
    return Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in routes.items()])


async def _run_all(agent: Agent, asked: Asked) -> list[Result]:
    """Light checks side by side, then the heavy ones: two that measure at once would measure each other."""
    light = [(running, given) for running, given in asked.checks if running.check.cost is Cost.LIGHT]
    done = await asyncio.gather(*(agent.refresh(running, given) for running, given in light))
    results = {running.name: result for (running, _), result in zip(light, done, strict=True)}
    for running, given in asked.checks:
        if running.check.cost is Cost.HEAVY:
            results[running.name] = await agent.refresh(running, given)
    return [results[running.name] for running, _ in asked.checks]


def _loopback(request: Request) -> bool:
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _as_json(agent: Agent, results: list[Result], runtime_s: float) -> dict[str, Any]:
    return {
        "nodes": [{"node": agent.node, "verdict": worst([r.verdict for r in results]), "results": results}],
        "summary": {agent.node: node_status(results)},
        "runtimeSeconds": runtime_s,
    }


def _as_text(agent: Agent, request: Request, asked: Asked, results: list[Result], runtime_s: float) -> str:
    host, port = request.scope.get("server") or ("localhost", 0)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return whole_answer(
        agent.node,
        address,
        asked.query,
        [running.check for running, _ in asked.checks],
        results,
        all_nodes=asked.all_nodes,
        runtime_s=runtime_s,
    )


def _report(agent: Agent) -> dict[str, Any]:
    results = [running.result() for running in agent.checks.values()]
    return {
        "node": agent.node,
        "verdict": worst([running.view().verdict for running in agent.checks.values() if running.known]),
        "bootID": agent.context.boot_id,
        "version": agent.version,
        "podUID": agent.pod_uid,
        "notReady": agent.unready(),
        "checks": [
            msgspec.to_builtins(result)
            | {
                "caughtUp": running.caught_up,
                "counts": dict(running.counts()),
                "cleared": running.ledger.over(),
                "numberGiven": running.ledger.counter,
            }
            for running, result in zip(agent.checks.values(), results, strict=True)
        ],
    }


def _declaration(running: Running) -> dict[str, Any]:
    check = running.check
    return {
        "name": check.name,
        "description": check.description,
        "cost": check.cost,
        "kind": "stream" if check.stream is not None else "snapshot",
        "periodSeconds": check.period_s,
        "timeoutSeconds": check.timeout_s,
        "devices": check.devices,
        "parameters": check.parameters.model_json_schema(),
        "values": running.parameters.model_dump(mode="json"),
        "examples": check.examples,
    }

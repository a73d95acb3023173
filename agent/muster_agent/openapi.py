"""The OpenAPI document of the agent, and a page of it for people; made when asked for, from the checks' declarations.

FastAPI would make the document by itself, and costs 6 MB on every node for it; the page is our own because Swagger's
comes from the Internet, which a cluster may not have.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from muster_agent.asking import OWN
from muster_agent.core import Agent
from muster_agent.running import Running

_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_JSON = {"application/json": {"schema": {"type": "object"}}}
_OK = {"200": {"description": "all is well", "content": _TEXT}}


def document(agent: Agent) -> dict[str, Any]:
    """OpenAPI 3.1."""
    checks = list(agent.checks.values())
    return {
        "openapi": "3.1.0",
        "info": {"title": f"muster agent of node {agent.node}", "version": agent.version},
        "paths": {
            "/status": _get(
                "Run checks now and tell what they find",
                {
                    "200": {"description": "what was found", "content": _TEXT | _JSON},
                    "400": {"description": "what is wrong with the query", "content": _TEXT},
                    "403": {"description": "a heavy check, asked for from elsewhere", "content": _TEXT},
                },
                query_parameters(checks),
            ),
            "/report": _get("The last results; nothing is run", {"200": {"description": "by check", "content": _JSON}}),
            "/checks": _get(
                "The checks there are, with their parameters", {"200": {"description": "by check", "content": _JSON}}
            ),
            "/metrics": _get(
                "For Prometheus",
                {
                    "200": {
                        "description": "its text format, or OpenMetrics where that is accepted",
                        "content": _TEXT | {"application/openmetrics-text": {"schema": {"type": "string"}}},
                    }
                },
            ),
            "/healthz": _get("The event loop gets round", _OK),
            "/readyz": _get(
                "The published verdict may be believed",
                _OK | {"503": {"description": "why it may not", "content": _TEXT}},
            ),
        },
    }


def page(agent: Agent) -> str:
    """The document as plain HTML."""
    described = document(agent)
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(described['info']['title'])}</title>"]
    parts.append("<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}")
    parts.append("td{vertical-align:top;padding:.2em 1em .2em 0}</style>")
    parts.append(f"<h1>{escape(described['info']['title'])}</h1><p>version {escape(agent.version)}, ")
    parts.append('as <a href="openapi.json">OpenAPI</a></p>')
    for path, methods in described["paths"].items():
        parts.append(f'<h2><a href="{escape(path[1:])}">{escape(path)}</a></h2><p>{escape(methods["get"]["summary"])}')
        rows = [
            f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['description'])}"
            for each in methods["get"].get("parameters", [])
        ]
        parts.append(f"<table>{''.join(rows)}</table>" if rows else "")
    return "".join(parts)


def query_parameters(checks: Sequence[Running]) -> list[dict[str, Any]]:
    """Those of /status: its own, and those of all checks; one that several share is listed once."""
    listed = {name: _parameter(name, text, {"type": "string"}) for name, text in OWN.items()}
    for running in checks:
        schema = running.check.parameters.model_json_schema()
        for name, form in schema.get("properties", {}).items():
            form = _resolved(form, schema.get("$defs", {}))
            text = f"{running.name}: {form.pop('description', name)}"
            if name in listed:
                listed[name]["description"] += f"; {text}"
            else:
                listed[name] = _parameter(name, text, form)
    return list(listed.values())


def _get(summary: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    return {"get": operation | ({"parameters": parameters} if parameters else {})}


def _parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _resolved(form: Any, definitions: dict[str, Any]) -> Any:
    """``form`` with its ``$ref`` put in place: OpenAPI looks for definitions elsewhere."""
    if isinstance(form, list):
        return [_resolved(item, definitions) for item in form]
    if not isinstance(form, dict):
        return form
    reference = form.get("$ref")
    merged = {**definitions.get(reference.rsplit("/", 1)[-1], {}), **form} if reference else form
    return {key: _resolved(value, definitions) for key, value in merged.items() if key not in ("$ref", "$defs")}

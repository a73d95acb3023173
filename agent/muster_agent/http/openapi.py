"""The OpenAPI document of the agent, and a page of it for people; made when asked for, from the checks' declarations.

FastAPI would make the document by itself, and costs 6 MB on every node for it; the page is our own because Swagger's
comes from the Internet, which a cluster may not have.
"""

from collections.abc import Collection, Sequence
from html import escape
from typing import Any

import msgspec

from muster_agent.checks.node_check import NodeCheck
from muster_agent.http.report import AgentReport, Declarations
from muster_agent.node_agent import Agent
from muster_agent.query import status_query
from muster_agent.query.schema import PLACE, Ending, StatusDocument
from muster_agent.query.status_query import OWN

HOSTS_LISTED = 1000  # more names are a form instead of a list
_STRING: dict[str, Any] = {"type": "string"}
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_ADDRESSES: list[dict[str, Any]] = [{"type": "string", "format": each} for each in ("ipv4", "ipv6")]
_NAMED_ADDRESS = {"type": "string", "pattern": rf"^[a-z0-9]([-a-z0-9.]{{0,61}}[a-z0-9])?={_OCTET}(\.{_OCTET}){{3}}$"}
# what these parameters are read by is a function, of which a declaration's schema knows nothing
_EXACT: dict[tuple[str, str], dict[str, Any]] = {
    ("iperf", "server"): {"anyOf": [*_ADDRESSES, {"type": "string", "maxLength": 0}]},
    ("ping", "peers"): {"type": "array", "items": {"anyOf": [*_ADDRESSES, _NAMED_ADDRESS]}, "minItems": 1},
}
_OBJECT: dict[str, Any] = {"type": "object"}
_TEXT = {"text/plain": {"schema": _STRING}}
_OK = {"200": {"description": "all is well", "content": _TEXT}}


def openapi_document(agent: Agent, nodes: Collection[str] | None = None) -> dict[str, Any]:
    """OpenAPI 3.1. ``nodes``: their names, where they are known; this one's alone without a cluster."""
    (whole, line, told, listed), schemas = msgspec.json.schema_components(
        [StatusDocument, Ending, AgentReport, Declarations], ref_template="#/components/schemas/{name}"
    )
    answered = {"schema": whole}
    lines = {"schema": {"type": "string", "description": f"lines: {line['$ref']} the last, NodeAnswer the others"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"muster agent of node {agent.node}", "version": agent.identity.version},
        "paths": {
            "/status": _get(
                "Run checks on one node, some or all, and tell what they find",
                {
                    "200": {
                        "description": "what was found; sent as nodes answer",
                        "content": {**_TEXT, "application/json": answered, "application/jsonl": lines},
                    },
                    "400": _text_response("what is wrong with the query, and what is allowed"),
                    "401": _text_response(
                        "what was asked for takes a token: force, files of a node, targets of its packets"
                    ),
                    "403": _text_response("the token's user has no right to it"),
                    "421": _text_response("an agent asked another for a node that is not its own"),
                    "503": _text_response("nobody can be asked now which nodes there are, or who the caller is"),
                },
                query_parameters(list(agent.checks.values()), nodes),
            ),
            "/report": _get("The last results and the history of verdicts; nothing is run", _json(told)),
            "/checks": _get("The checks there are, with their parameters", _json(listed)),
            PLACE: _get("JSON Schema of what /status answers with format=json", _json(_OBJECT)),
            "/openapi.json": _get("The OpenAPI document", _json(_OBJECT)),
            "/docs": _get("The OpenAPI document for people", _content("text/html", _STRING)),
            "/metrics": _get(
                "For Prometheus",
                {
                    "200": {
                        "description": "its text format, or OpenMetrics where that is accepted",
                        "content": _TEXT | {"application/openmetrics-text": {"schema": _STRING}},
                    }
                },
            ),
            "/healthz": _get("The event loop gets round", _OK),
            "/readyz": _get("The published verdict may be believed", _OK | {"503": _text_response("why it may not")}),
        },
        "components": {"schemas": schemas},
    }


def html_page(agent: Agent, nodes: Collection[str] | None = None) -> str:
    """The document as plain HTML."""
    described = openapi_document(agent, nodes)
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(described['info']['title'])}</title>"]
    parts.append("<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}")
    parts.append("td{vertical-align:top;padding:.2em 1em .2em 0}</style>")
    parts.append(f"<h1>{escape(described['info']['title'])}</h1><p>version {escape(agent.identity.version)}, ")
    parts.append('as <a href="openapi.json">OpenAPI</a></p>')
    for path, methods in described["paths"].items():
        parts.append(f'<h2><a href="{escape(path[1:])}">{escape(path)}</a></h2><p>{escape(methods["get"]["summary"])}')
        rows = [
            f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['description'])}"
            for each in methods["get"].get("parameters", [])
        ]
        parts.append(f"<table>{''.join(rows)}</table>" if rows else "")
    return "".join(parts)


def query_parameters(checks: Sequence[NodeCheck], nodes: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Those of /status: its own, and those of all checks. What several have must suit them all; given as CHECK.NAME it
    is for one."""
    forms = _own_forms(checks, nodes)
    listed = {name: _parameter(name, text, forms[name]) for name, text in OWN.items()}
    for running in checks:
        if running.check.stream is not None:
            fixed = ", ".join(running.check.parameters.model_fields)
            listed["check"]["description"] += f". {running.name} never rests, and runs with what is configured: {fixed}"
    found: dict[str, list[tuple[NodeCheck, dict[str, Any], str]]] = {}
    for running in checks:
        schema = running.check.parameters.model_json_schema()
        for name, form in schema.get("properties", {}).items():
            form = _in_a_query(_resolved(form, schema.get("$defs", {})))
            text = f"{running.name}: {form.pop('description', name)}"
            form = _EXACT.get((running.name, name), form)
            if running.check.stream is not None:
                form, text = _fixed(getattr(running.parameters, name)), f"{text} (set in the agent's configuration)"
            found.setdefault(name, []).append((running, form, text))
    for name, owners in found.items():
        text = "; ".join(text for _, _, text in owners)
        listed[name] = _parameter(name, text, _all_of([form for _, form, _ in owners]))
        if len(owners) > 1:
            for running, form, text in owners:
                qualified = f"{running.name}.{name}"
                listed[qualified] = _parameter(qualified, f"{text}; for this check only", form)
    if nodes is not None and len(nodes) == 1:
        listed = {name: each for name, each in listed.items() if name not in status_query.IN_A_CLUSTER}
    return [each for each in listed.values() if each["schema"] is not None]


def _own_forms(checks: Sequence[NodeCheck], nodes: Collection[str] | None) -> dict[str, dict[str, Any]]:
    host: dict[str, Any] = {"type": "string", "pattern": f"^{status_query.HOST_NAME}$"}
    if nodes is not None and len(nodes) <= HOSTS_LISTED:
        host = {"type": "string", "enum": sorted(nodes)}
    names = [*(running.name for running in checks), "all"]
    return {
        "check": {"type": "array", "items": {"type": "string", "enum": names}, "minItems": 1},
        "host": {"type": "array", "items": host, "minItems": 1, "maxItems": status_query.HOSTS_LIMIT},
        "batch": _from_one_to(status_query.BATCH_LIMIT),
        "serverspernode": _from_one_to(status_query.SERVERS_LIMIT),
        "clientsperiface": _from_one_to(status_query.CLIENTS_LIMIT),
        "plane": {"type": "string", "enum": list(status_query.PLANES)},
        "job": {"type": "string", "pattern": f"^{status_query.JOB}$"},
        "nodelabel": {"type": "string", "pattern": f"^{status_query.LABELS}$"},
        "force": {"type": "string", "enum": list(status_query.FLAGS)},
        "format": {"type": "string", "enum": list(status_query.FORMATS)},
    }


def _from_one_to(limit: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": limit}


def _in_a_query(form: dict[str, Any]) -> dict[str, Any]:
    """As text in a URL: there is no null there, and what is no plain value is written as the description says."""
    form = {key: value for key, value in form.items() if key not in ("title", "default")}
    if "anyOf" in form:
        choices = [choice for choice in form.pop("anyOf") if choice.get("type") != "null"]
        form |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    if form.get("type") == "boolean":
        return _without(form, "type") | {"type": "string", "enum": list(status_query.FLAGS)}
    if form.get("type") in ("object", "array"):
        return {"type": "string", **{key: form[key] for key in ("description", "pattern") if key in form}}
    return form


def _fixed(value: object) -> dict[str, Any] | None:
    """What never rests runs with what it has."""
    if value is None:
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return {"type": "string", "enum": [text]}


def _all_of(forms: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    different = [form for n, form in enumerate(forms) if form is not None and form not in forms[:n]]
    if not different:
        return None
    return different[0] if len(different) == 1 else {"allOf": different}


def _without(form: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in form.items() if name != key}


def _get(summary: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    return {"get": operation | ({"parameters": parameters} if parameters else {})}


def _text_response(description: str) -> dict[str, Any]:
    return {"description": description, "content": _TEXT}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return _content("application/json", schema)


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "as it is now", "content": {media_type: {"schema": schema}}}}


def _parameter(name: str, description: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    listed = {"name": name, "in": "query", "required": False, "description": description, "schema": schema}
    # a comma list, not a name given many times
    return listed | ({"style": "form", "explode": False} if schema and schema.get("type") == "array" else {})


def _resolved(form: Any, definitions: dict[str, Any]) -> Any:
    """``form`` with its ``$ref`` put in place: OpenAPI looks for definitions elsewhere."""
    if isinstance(form, list):
        return [_resolved(item, definitions) for item in form]
    if not isinstance(form, dict):
        return form
    reference = form.get("$ref")
    merged = {**definitions.get(reference.rsplit("/", 1)[-1], {}), **form} if reference else form
    return {key: _resolved(value, definitions) for key, value in merged.items() if key not in ("$ref", "$defs")}

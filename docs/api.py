"""Generates docs/api.md, the HTTP routes of all parts and the fields of a NodeHealth, from code and CRD."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import reference
import yaml
from pydantic.alias_generators import to_camel

from muster_agent.http.routes import make_app as agent_app
from muster_kube.nodehealth import AgentIdentity
from muster_operator import app as operator
from muster_operator import metrics_server
from muster_operator.proxy import routes as proxy
from muster_operator.vipu.simulator import routes as simulator
from muster_operator.visibility.extender_app import extender_app
from muster_tainter.http import routes as tainter
from muster_tainter.page.goodput import add_goodput_page
from muster_tainter.page.routes import add_page

FILE = reference.HERE / "api.md"
CRD = reference.HERE.parent / "helm/muster/crds/muster.dev_nodehealths.yaml"
INTRODUCTION = """\
The HTTP routes of all parts and the fields of a NodeHealth, which clients may rely on. Open `/docs` of a running part
to read and try its routes; `/openapi.json` has the same as OpenAPI 3.1. The agent's document includes the parameters of
every check, as [the checks](checks.md) does. [Security](security.md) says who may use which route. Errors are a line of
text, or JSON where this page says so, and name what is allowed."""
TABLE = ["| request | effect |", "|---|---|"]


def text() -> str:
    nothing: Any = MagicMock()  # the routes can be created without their data
    agent: Any = SimpleNamespace(node="NODE", identity=AgentIdentity(), checks={})
    described = agent_app(agent, nothing).openapi()
    of_tainter = tainter.make_app(*5 * [nothing])
    add_page(of_tainter, *3 * [nothing])
    add_goodput_page(of_tainter, nothing)
    parts = (
        ("muster tainter, port 3334", of_tainter),
        ("muster operator, port 8081", operator.health_app(nothing)),
        ("muster operator, port 8443 (TLS)", metrics_server.metrics_app(nothing, nothing)),
        ("muster operator, port 9444 (TLS), for kube-scheduler", extender_app(nothing, nothing, 64)),
        ("muster vipu-proxy, port 8080", proxy.make_app(nothing, nothing, allowed=frozenset())),
        ("muster vipu-sim, port 8090", simulator.make_app(nothing)),
    )
    lines = ["# HTTP routes and the NodeHealth object", "", reference.NOTE, "", *INTRODUCTION.splitlines(), ""]
    lines += ["## muster agent, port 3333", "", *TABLE, *_operations(described), ""]
    lines += ["### Parameters of /status", "", "| parameter | meaning |", "|---|---|"]
    for each in described["paths"]["/status"]["get"]["parameters"]:
        lines.append(f"| `{each['name']}` | {reference.cell(each['description'])} |")
    lines.append("")
    for name, schema in described["components"]["schemas"].items():
        lines += _answer(name, schema)
    for title, service in parts:
        lines += [f"## {title}", "", *TABLE, *_operations(service.openapi()), ""]
    return "\n".join([*lines, *_node_health()])


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    """A row for each route of an OpenAPI document."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if not operation.get("description"):
                raise SystemExit(f"{path}: the route needs a docstring")
            yield f"| `{method.upper()} {path}` | {reference.cell(' '.join(operation['description'].split()))} |"


def _answer(name: str, schema: Mapping[str, Any]) -> list[str]:
    """The fields of a JSON message of the agent."""
    if "properties" not in schema:
        return []
    lead, meanings = _split_docstring(schema.get("description", ""), schema["properties"])
    rows = [
        f"| `{field}` | {reference.cell(_kind(each))} | {reference.cell(meanings.get(field, ''))} |"
        for field, each in schema["properties"].items()
    ]
    return [f"### {name}", "", *([lead, ""] if lead else []), "| field | type | meaning |", "|---|---|---|", *rows, ""]


def _split_docstring(text: str, fields: Collection[str]) -> tuple[str, dict[str, str]]:
    """The text without its lines ``field: meaning`` and ``field, field: meaning``, and the meanings by field."""
    lead: list[str] = []
    meanings: dict[str, str] = {}
    current: list[str] = []
    for line in inspect.cleandoc(text.replace("``", "`")).splitlines():
        named = re.fullmatch(r"(\w+(?:, \w+)*): +(.+)", line)
        names = [to_camel(each) for each in named[1].split(", ")] if named else []
        if named and set(names) <= set(fields):
            current = names
            meanings |= dict.fromkeys(names, named[2])
        elif current and line.startswith("  "):
            meanings |= {field: f"{meanings[field]} {line.strip()}" for field in current}
        else:
            current = []
            lead.append(line.strip())
    return " ".join(line for line in lead if line), meanings


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema and "type" not in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{_kind(schema['additionalProperties'])} by name"
    return {"object": "mapping", "string": "text"}.get(str(schema.get("type")), str(schema.get("type", "any")))


def _node_health() -> list[str]:
    found = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "## NodeHealth",
        "",
        f"{found['description']} The resource is `nodehealths.muster.dev`; each node has one, with its name.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"### {part}", "", found["properties"][part]["description"], ""]
        lines += ["| field | type | meaning |", "|---|---|---|", *reference.rows(found["properties"][part], part), ""]
    return lines


def files() -> dict[Path, str]:
    return {FILE: text()}

"""docs/api.md: what each part answers over HTTP, and the fields of a NodeHealth; from routes, schemas and the CRD."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import reference
import yaml

from muster_agent.http.routes import make_app as agent_app
from muster_kube.nodehealth import AgentIdentity
from muster_operator import app as operator
from muster_operator import metrics_server
from muster_operator.proxy import routes as proxy
from muster_operator.vipu.simulator import routes as simulator
from muster_tainter.http import routes as tainter
from muster_tainter.page.routes import add_page

FILE = reference.HERE / "api.md"
CRD = reference.HERE.parent / "helm/muster/crds/muster.dev_nodehealths.yaml"
INTRODUCTION = """\
What a client may rely on. Each part serves its own as OpenAPI 3.1 (`/openapi.json`) and a page to try it (`/docs`), all
of it from the part itself. The agent's has every check's parameters; those stand in [the checks](checks.md), too. Who
may ask for what: [security](security.md). Refusals are JSON or a line of text that says what is allowed."""
TABLE = ["| request | answers |", "|---|---|"]


def text() -> str:
    nothing: Any = MagicMock()  # routes are made without what they answer from
    agent: Any = SimpleNamespace(node="NODE", identity=AgentIdentity(), checks={})
    described = agent_app(agent, nothing).openapi()
    of_tainter = tainter.make_app(*5 * [nothing])
    add_page(of_tainter, *3 * [nothing])
    parts = (
        ("muster tainter, port 3334", of_tainter),
        ("muster operator, port 8081", operator.health_app(nothing)),
        ("muster operator, port 8443 (TLS)", metrics_server.metrics_app(nothing, nothing)),
        ("muster vipu-proxy, port 8080", proxy.make_app(nothing, nothing, allowed=frozenset())),
        ("muster vipu-sim, port 8090", simulator.make_app(nothing)),
    )
    lines = ["# HTTP interfaces, and the NodeHealth object", "", reference.NOTE, "", *INTRODUCTION.splitlines(), ""]
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
    """Of an OpenAPI document: its requests, and what they answer."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if not operation.get("description"):
                raise SystemExit(f"{path}: a docstring has to say what it answers")
            yield f"| `{method.upper()} {path}` | {reference.cell(' '.join(operation['description'].split()))} |"


def _answer(name: str, schema: Mapping[str, Any]) -> list[str]:
    """Of the agent's: what a JSON answer has in it."""
    if "properties" not in schema:
        return []
    rows = [f"| `{field}` | {reference.cell(_kind(each))} |" for field, each in schema["properties"].items()]
    said = " ".join(schema.get("description", "").split()).replace("``", "`")
    return [f"### {name}", "", *([said, ""] if said else []), "| field | type |", "|---|---|", *rows, ""]


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
    lines = ["## NodeHealth", "", f"{found['description']} `nodehealths.muster.dev`, one a node, of its name.", ""]
    for part in ("spec", "status"):
        lines += [f"### {part}", "", found["properties"][part]["description"], ""]
        lines += ["| field | type | meaning |", "|---|---|---|", *reference.rows(found["properties"][part], part), ""]
    return lines


def files() -> dict[Path, str]:
    return {FILE: text()}

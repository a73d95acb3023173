"""Adds the parameters of checks to the OpenAPI document. /status accepts them in addition to its own, which FastAPI
documents.

The document is generated from the declarations, once in a process. It does not list the nodes of a fleet: they change.
"""

from collections.abc import Sequence
from typing import Any

from muster_agent.checks.node_check import NodeCheck
from muster_agent.query.status_query import ALL_HOSTS, FLAGS, IN_A_CLUSTER

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_ADDRESSES: list[dict[str, Any]] = [{"type": "string", "format": each} for each in ("ipv4", "ipv6")]
_NAMED_ADDRESS = {"type": "string", "pattern": rf"^[a-z0-9]([-a-z0-9.]{{0,61}}[a-z0-9])?={_OCTET}(\.{_OCTET}){{3}}$"}
# functions parse these parameters, so the schema of their declaration does not describe them
_EXACT: dict[tuple[str, str], dict[str, Any]] = {
    ("iperf", "server"): {"anyOf": [*_ADDRESSES, {"type": "string", "maxLength": 0}]},
    ("ping", "peers"): {"type": "array", "items": {"anyOf": [*_ADDRESSES, _NAMED_ADDRESS]}, "minItems": 1},
}


def complete_parameters(operation: dict[str, Any], checks: Sequence[NodeCheck]) -> None:
    """Add the names and the parameters of ``checks`` to ``operation`` (GET /status). A value of NAME must be valid for
    all checks that have the parameter; CHECK.NAME applies to one."""
    listed = {each["name"]: each | {"schema": _in_a_query(each["schema"])} for each in operation["parameters"]}
    listed["check"]["schema"]["items"] = {"type": "string", "enum": [*(each.name for each in checks), "all"]}
    for name in ("check", "host"):
        listed[name]["schema"]["minItems"] = 1
    found: dict[str, list[tuple[NodeCheck, dict[str, Any] | None, str]]] = {}
    for running in checks:
        schema = running.check.parameters.model_json_schema()
        if running.check.stream is not None:
            fixed = ", ".join(running.check.parameters.model_fields)
            listed["check"]["description"] += f". {running.name} runs all the time, with the configured {fixed}"
        for name, form in schema.get("properties", {}).items():
            form = _in_a_query(_resolved(form, schema.get("$defs", {})))
            text = f"{running.name}: {form.pop('description', name)}"
            exact: dict[str, Any] | None = _EXACT.get((running.name, name), _as_text(form))
            if name in running.check.parameters.configured:
                continue
            if running.check.stream is not None:
                exact, text = (
                    _fixed(getattr(running.parameters, name)),
                    f"{text} (only settable in the agent's configuration)",
                )
            found.setdefault(name, []).append((running, exact, text))
    for name, owners in found.items():
        text = "; ".join(text for _, _, text in owners)
        listed[name] = _parameter(name, text, _all_of([form for _, form, _ in owners]))
        if len(owners) > 1:
            for running, one, text in owners:
                qualified = f"{running.name}.{name}"
                listed[qualified] = _parameter(qualified, f"{text}; for this check only", one)
    for each in listed.values():
        if each["schema"] and each["schema"].get("type") == "array":
            each |= {"style": "form", "explode": False}  # a comma list, not a name given many times
    operation["parameters"] = [each for each in listed.values() if each["schema"] is not None]


def restrict_to_node(operation: dict[str, Any], node: str) -> None:
    """For an agent outside a cluster, which knows only its own node: the only valid name, and no selectors."""
    host = next(each for each in operation["parameters"] if each["name"] == "host")
    host["schema"]["items"] = {"type": "string", "enum": [node, ALL_HOSTS]}
    operation["parameters"] = [each for each in operation["parameters"] if each["name"] not in IN_A_CLUSTER]


def _as_text(form: dict[str, Any]) -> dict[str, Any]:
    """Values other than scalars are text, in the form that the description explains."""
    if form.get("type") in ("object", "array"):
        return {"type": "string", **({"pattern": form["pattern"]} if "pattern" in form else {})}
    return form


def _in_a_query(form: dict[str, Any]) -> dict[str, Any]:
    """The schema for a value in a URL, which cannot be null."""
    form = {key: value for key, value in form.items() if key not in ("title", "default")}
    if "anyOf" in form:
        choices = [choice for choice in form.pop("anyOf") if choice.get("type") != "null"]
        form |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    if form.get("type") == "boolean":
        return {**form, "type": "string", "enum": list(FLAGS)}
    return form


def _fixed(value: object) -> dict[str, Any] | None:
    """The schema of a parameter of a stream check, which has only its configured value."""
    if value is None:
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return {"type": "string", "enum": [text]}


def _all_of(forms: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    different = [form for n, form in enumerate(forms) if form is not None and form not in forms[:n]]
    if not different:
        return None
    return different[0] if len(different) == 1 else {"allOf": different}


def _parameter(name: str, description: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _resolved(form: Any, definitions: dict[str, Any]) -> Any:
    """``form`` with its ``$ref`` resolved, because OpenAPI keeps definitions elsewhere."""
    if isinstance(form, list):
        return [_resolved(item, definitions) for item in form]
    if not isinstance(form, dict):
        return form
    reference = form.get("$ref")
    merged = {**definitions.get(reference.rsplit("/", 1)[-1], {}), **form} if reference else form
    return {key: _resolved(value, definitions) for key, value in merged.items() if key not in ("$ref", "$defs")}

"""What a /status query asks for: names and values are held against the declarations, before anything runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from muster_agent.running import Running
from muster_checks.declaration import Cost, Parameters
from muster_checks.registry import UnknownCheck, select
from muster_kube.settings import explain

FORMATS = ("text", "json")
OWN = {
    "check": "comma list of checks, or all; by default the light ones",
    "host": "this node's name; by default this node",
    "batch": "how many nodes at once; one node answers here, so any number will do",
    "format": "text (default) or json; the header Accept: application/json asks for json, too",
}


class BadQuery(ValueError):
    """What, where, what was found, what is allowed."""


class Asked(msgspec.Struct, frozen=True):
    """checks: what to run, with which parameters; all_nodes: no host was named; query: the same in one line; guarded:
    the parameters given that a stranger may not choose."""

    checks: Sequence[tuple[Running, Parameters]]
    as_json: bool
    all_nodes: bool
    query: str
    guarded: tuple[str, ...] = ()


def read_query(items: Iterable[tuple[str, str]], running: Mapping[str, Running], node: str, accept: str) -> Asked:
    """Raises BadQuery."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in items:
        target = own if name in OWN else others
        if name in target:
            raise BadQuery(f"{name}: given twice; expected once (checks are a comma list)")
        target[name] = value
    chosen = _chosen(own.get("check"), running)
    hosts = _words(own["host"]) if "host" in own else []
    if "host" in own and set(hosts) != {node}:
        raise BadQuery(f"host: {own['host']!r}: this agent answers for its own node only; expected {node}")
    if "batch" in own and not (own["batch"].isascii() and own["batch"].isdigit() and int(own["batch"][:9]) > 0):
        raise BadQuery(f"batch: {own['batch']!r}: expected a number of nodes from 1")
    if own.get("format", "text") not in FORMATS:
        raise BadQuery(f"format: {own['format']!r}: expected {' or '.join(FORMATS)}")
    known = {name for each in chosen for name in each.check.parameters.model_fields}
    for name in others:
        if name not in known:
            allowed = ", ".join([*OWN, *sorted(known)])
            raise BadQuery(f"{name}: unknown parameter; expected one of {allowed}")
    as_json = own.get("format") == "json" or ("format" not in own and "application/json" in accept)
    query = f"host={node}&check={','.join(each.name for each in chosen)}"
    kept = {name for each in chosen for name in each.check.parameters.guarded()}
    asked = [(each, _parameters(each, others)) for each in chosen]
    return Asked(asked, as_json, "host" not in own, query, tuple(sorted(kept & others.keys())))


def _chosen(names: str | None, running: Mapping[str, Running]) -> list[Running]:
    if names is None:
        return [each for each in running.values() if each.check.cost is Cost.LIGHT]
    try:
        checks = select(_words(names), {name: each.check for name, each in running.items()})
    except UnknownCheck as error:
        raise BadQuery(str(error)) from error
    if not checks:
        raise BadQuery(f"check: {names!r}: expected all or some of {', '.join(sorted(running))}")
    return [running[check.name] for check in checks]


def _parameters(running: Running, given: Mapping[str, str]) -> Parameters:
    model = running.check.parameters
    values: dict[str, Any] = running.parameters.model_dump(exclude_unset=True)
    values |= {name: value for name, value in given.items() if name in model.model_fields}
    try:
        parameters = model.model_validate(values)
    except ValidationError as error:
        raise BadQuery("; ".join(explain(error, "", model))) from error
    if running.check.stream is not None and parameters != running.parameters:
        changed = [name for name in given if getattr(parameters, name, None) != getattr(running.parameters, name, None)]
        raise BadQuery(
            f"{', '.join(changed)}: {running.name} never rests, so it cannot be run with other parameters; "
            f"they are set in the agent's configuration (checks.{running.name}.parameters)"
        )
    return parameters


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]

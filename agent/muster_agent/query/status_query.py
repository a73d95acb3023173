"""What a /status query asks for: names and values are held against the declarations, before anything runs anywhere."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from pydantic import ValidationError

from muster_agent.checks.node_check import NodeCheck
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.vocabulary import shorten
from muster_checks.registry import UnknownCheck, select_checks
from muster_kube.process.settings import explain

HEAVY_BY_DEFAULT = ("pciebw", "dcgm", "remapped", "ping")  # Autopilot's default set, beside all that is light
FORMATS = ("text", "json", "jsonl")
ACCEPTED = {"application/json": "json", "application/jsonl": "jsonl", "application/x-ndjson": "jsonl"}
PLANES = ("data", "mgmt")
FLAGS = ("false", "true")
FIELDS_LIMIT = 512
HOSTS_LIMIT = 15_000
BATCH_LIMIT = 1_000_000
SERVERS_LIMIT = CLIENTS_LIMIT = 64
# names as Kubernetes allows them; spaces around a comma do no harm
HOST_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_LABEL = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?={_LABEL_VALUE}"
LABELS = rf"{_LABEL}(,{_LABEL}){{0,15}}"
JOB = rf"[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?:{_LABEL}"

IN_A_CLUSTER = ("job", "nodelabel")
OWN = {
    "check": "comma list of checks, or all; by default the light ones, and the last results of "
    f"{', '.join(HEAVY_BY_DEFAULT)} where those are heavy. A heavy check that is named runs where its node is idle",
    "host": "comma list of nodes; by default all",
    "batch": "how many nodes at once; by default as many as the agent's setting fleet_at_once allows, which bounds "
    "any number given here",
    "serverspernode": "iperf: servers on a node, spread over its secondary interfaces, at least one each",
    "clientsperiface": "iperf: clients towards one server",
    "plane": "iperf: data (default; the secondary interfaces) or mgmt (eth0; one server a node, one client)",
    "job": "NAMESPACE:key=value: only the nodes on which pods with that label run",
    "nodelabel": "key=value[,…]: only nodes with these labels",
    "force": "true: heavy checks run beside somebody's work, too; over loopback, or with a Kubernetes token of "
    "somebody who may patch nodehealths.muster.dev",
    "format": "text (default), json, or jsonl (a line for each node, as it answers); the header Accept asks for them, "
    "too",
}


class BadQuery(ValueError):
    """What, where, what was found, what is allowed."""


class IperfOptions(msgspec.Struct, frozen=True):
    """As asked for; None: not given."""

    servers_per_node: int | None = None
    clients_per_iface: int | None = None
    plane: str = PLANES[0]


class StatusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query that is right as far as one agent can tell: whether the nodes are there is not known here.

    checks:    what is asked for, in that order, with which parameters on this node
    named:     the checks were named; else heavy ones answer with their last result
    hosts:     node names, each once; None: all of them
    batch:     nodes at once; None: not given
    job, nodelabel: as given, of the right form; empty: not given
    given:     parameters of the checks asked for, as given; what a peer is told
    guarded:   those of them that a stranger may not choose
    notes:     what was given and has no effect, for people
    """

    checks: Sequence[tuple[NodeCheck, Parameters]]
    named: bool
    hosts: tuple[str, ...] | None = None
    batch: int | None = None
    job: str = ""
    nodelabel: str = ""
    iperf: IperfOptions = IperfOptions()
    fmt: str = "text"
    force: bool = False
    given: Mapping[str, str] = {}
    guarded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def check_names(self) -> tuple[str, ...]:
        return tuple(running.name for running, _ in self.checks)

    def for_peer(self, node: str, checks: Sequence[str] | None = None) -> dict[str, str]:
        """The query by which ``node``'s own agent is asked the same of itself. checks: only these; None: all."""
        names = self.check_names if checks is None else checks
        query = {"host": node}
        if self.named or checks is not None:
            query["check"] = ",".join(names)
        chosen = {running.name: running.check.parameters.model_fields for running, _ in self.checks}
        for name, value in self.given.items():
            if any(_field_of(name, check, chosen[check]) for check in names):
                query[name] = value
        return query | ({"force": "true"} if self.force else {})

    def url_query(self, node: str) -> str:
        """The same, as a person would type it."""
        return urlencode(self.for_peer(node, self.check_names), safe=",:=/")


def read_fields(query: bytes) -> list[tuple[str, str]]:
    """The names and values of a query string. Raises BadQuery."""
    try:
        # bounded: each field is an object, and a query may be a megabyte long
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_LIMIT)
    except ValueError as error:
        raise BadQuery(
            f"more than {FIELDS_LIMIT} parameters; expected each once (checks and nodes are lists)"
        ) from error


def read_query(items: Iterable[tuple[str, str]], running: Mapping[str, NodeCheck], accept: str = "") -> StatusQuery:
    """``accept``: the header. Raises BadQuery."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in items:
        target = own if name in OWN else others
        if name in target:
            raise BadQuery(f"{shorten(name, 120)}: given twice; expected once (checks and nodes are comma lists)")
        target[name] = value
    chosen = _chosen(own.get("check"), running)
    given, notes = _given(others, chosen, running)
    parameters = [(each, _parameters(each, others)) for each in chosen]
    return StatusQuery(
        checks=parameters,
        named="check" in own,
        hosts=_hosts(own["host"]) if "host" in own else None,
        batch=_number("batch", own.get("batch"), BATCH_LIMIT),
        job=_of_form("job", own.get("job"), JOB, "NAMESPACE:key=value"),
        nodelabel=_of_form("nodelabel", own.get("nodelabel"), LABELS, "key=value[,key=value…], at most 16"),
        iperf=IperfOptions(
            _number("serverspernode", own.get("serverspernode"), SERVERS_LIMIT),
            _number("clientsperiface", own.get("clientsperiface"), CLIENTS_LIMIT),
            _one_of("plane", own.get("plane"), PLANES),
        ),
        fmt=_one_of("format", own["format"], FORMATS) if "format" in own else _accepted(accept),
        force=_one_of("force", own.get("force"), FLAGS) == "true",
        given=given,
        guarded=_guarded(given, chosen),
        notes=notes,
    )


def _accepted(accept: str) -> str:
    for part in accept.lower().split(","):
        if fmt := ACCEPTED.get(part.partition(";")[0].strip()):
            return fmt
    return FORMATS[0]


def _chosen(names: str | None, running: Mapping[str, NodeCheck]) -> list[NodeCheck]:
    if names is None:
        return [each for each in running.values() if each.check.cost is Cost.LIGHT or each.name in HEAVY_BY_DEFAULT]
    try:
        checks = select_checks(_words(names), {name: each.check for name, each in running.items()})
    except UnknownCheck as error:
        raise BadQuery(shorten(str(error), 2048)) from error
    if not checks:
        raise BadQuery(f"check: {_shown(names)}: expected all or some of {', '.join(sorted(running))}")
    return [running[check.name] for check in checks]


def _hosts(text: str) -> tuple[str, ...]:
    if text.count(",") >= HOSTS_LIMIT:
        raise BadQuery(f"host: {text.count(',') + 1} names; expected at most {HOSTS_LIMIT}")
    hosts = tuple(dict.fromkeys(_words(text)))
    if not hosts:
        raise BadQuery(f"host: {_shown(text)}: expected names of nodes, comma separated")
    for host in hosts:
        if not re.fullmatch(HOST_NAME, host):
            raise BadQuery(
                f"host: {_shown(host)}: expected the name of a node: lower case letters, digits, '-' and '.'"
            )
    return hosts


def _number(name: str, text: str | None, limit: int) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= limit:
        return int(text)
    raise BadQuery(f"{name}: {_shown(text)}: expected a number from 1 to {limit}")


def _one_of(name: str, text: str | None, allowed: Sequence[str]) -> str:
    if text is None:
        return allowed[0]
    if text in allowed:
        return text
    raise BadQuery(f"{name}: {_shown(text)}: expected {', '.join(allowed[:-1])} or {allowed[-1]}")


def _of_form(name: str, text: str | None, form: str, expected: str) -> str:
    if text is None:
        return ""
    if re.fullmatch(form, text, re.ASCII):
        return text
    raise BadQuery(f"{name}: {_shown(text)}: expected {expected}")


def _given(
    others: Mapping[str, str], chosen: Sequence[NodeCheck], running: Mapping[str, NodeCheck]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of ``others`` is for the checks asked for, and what is said of the rest, each valid for its check."""
    given: dict[str, str] = {}
    notes = []
    for name, value in others.items():
        owners = [each for each in running.values() if _field_of(name, each.name, each.check.parameters.model_fields)]
        if not owners:
            known = {field for each in running.values() for field in each.check.parameters.model_fields}
            allowed = ", ".join([*OWN, *sorted(known)])
            raise BadQuery(
                f"{shorten(name, 120)}: unknown parameter; expected one of {allowed}; CHECK.NAME is for that check only"
            )
        _suits_all(name, value, owners)
        if any(each in chosen for each in owners):
            given[name] = value
            continue
        names = " and ".join(each.name for each in owners)
        notes.append(f"{name} has no effect: it is a parameter of {names}, not asked for here (check=)")
    return given, tuple(notes)


def _suits_all(name: str, value: str, owners: Sequence[NodeCheck]) -> None:
    """What several checks have must suit them all, asked for or not: so what a name takes is the same in every query,
    and can be documented."""
    for each in owners:
        try:
            _parameters(each, {name: value})
        except BadQuery as error:
            if len(owners) == 1:
                raise
            others = " and ".join(f"{other.name}.{name}" for other in owners if other is not each)
            raise BadQuery(f"{error} (for {each.name}; {others} would leave it out)") from error


def _guarded(given: Mapping[str, str], chosen: Sequence[NodeCheck]) -> tuple[str, ...]:
    return tuple(
        sorted(
            name
            for name in given
            if any(
                _field_of(name, each.name, each.check.parameters.model_fields) in each.check.parameters.guarded()
                for each in chosen
            )
        )
    )


def _field_of(name: str, check: str, fields: Iterable[str]) -> str:
    """The field of ``check`` that is given as ``name`` or ``check.name``; empty: none."""
    field = name.removeprefix(f"{check}.")
    return field if field in fields else ""


def _parameters(running: NodeCheck, given: Mapping[str, str]) -> Parameters:
    """The check's parameters: as configured, and as given over that. Raises BadQuery."""
    model = running.check.parameters
    names: dict[str, str] = {}
    for name in sorted(given, key=lambda name: "." in name):  # CHECK.NAME counts for more than NAME
        if field := _field_of(name, running.name, model.model_fields):
            names[field] = name
    if not names:
        return running.parameters
    for field, name in names.items():
        if model.model_fields[field].annotation is bool:
            _one_of(name, given[name], FLAGS)
    values: dict[str, Any] = running.parameters.model_dump(exclude_unset=True)
    values |= {field: given[name] for field, name in names.items()}
    try:
        parameters = model.model_validate(values)
    except ValidationError as error:
        raise BadQuery("; ".join(explain(error, "", model))) from error
    if running.check.stream is not None and parameters != running.parameters:
        changed = [
            name for field, name in names.items() if getattr(parameters, field) != getattr(running.parameters, field)
        ]
        raise BadQuery(
            f"{', '.join(changed)}: {running.name} never rests, so it cannot be run with other parameters; "
            f"they are set in the agent's configuration (checks.{running.name}.parameters)"
        )
    return parameters


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _shown(text: str) -> str:
    return repr(shorten(text, 120))

"""Parses and validates a /status query, before anything runs on any node.

FastAPI and pydantic read the parameters of /status itself (StatusParameters); the models of the checks read theirs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import core_schema

from muster_agent.checks.node_check import NodeCheck
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.unknown_names import explain_unknown
from muster_checks.registry import UnknownCheck, select_checks
from muster_kube.http.bad_request import BadRequest
from muster_kube.process.settings import explain, quote

HEAVY_BY_DEFAULT = ("pciebw", "dcgm", "remapped", "ping")  # Autopilot's default set, in addition to all light checks
ACCEPTED = {"application/json": "json", "application/jsonl": "jsonl", "application/x-ndjson": "jsonl"}
Format = Literal["text", "json", "jsonl"]
Plane = Literal["data", "mgmt"]
Flag = Literal["false", "true"]
PLANES: tuple[Plane, ...] = get_args(Plane)
FLAGS: tuple[Flag, ...] = get_args(Flag)
HOSTS_LIMIT = 15_000
BATCH_LIMIT = 1_000_000
SERVERS_LIMIT = CLIENTS_LIMIT = 64
FIRST_PORT = 5201  # iperf3's default; one port for each of SERVERS_LIMIT servers
ALL_HOSTS = "all"
NETWORK_CHECK = "iperf"
LIST_CHECKS = 'run "muster checks" or request /checks to list all checks'
LIST_PARAMETERS = 'run "muster checks" or request /checks to list the parameters of all checks'
# names as Kubernetes allows them; spaces around a comma are ignored
HOST_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_LABEL = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?={_LABEL_VALUE}"
LABELS = rf"{_LABEL}(,{_LABEL}){{0,15}}"
JOB = rf"[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?:{_LABEL}"

IN_A_CLUSTER = ("job", "nodelabel")


class BadQuery(BadRequest):
    """The query is invalid. The message names the parameter, the value found and the values allowed."""


class UnknownName(BadQuery):
    """The query names a check or a parameter that does not exist.

    kind:  ``check`` or ``parameter``
    valid: every name that exists
    shown: the part of ``valid`` for an answer in plain text; parameters of checks are too many for a terminal
    """

    def __init__(self, message: str, kind: str, valid: Sequence[str], shown: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.valid = tuple(valid)
        self.shown = tuple(shown) or self.valid


def _split(given: Any) -> Any:
    """Split a comma list. FastAPI passes a list with the value of each ``name=``; check_repeated admits only one."""
    text = given if isinstance(given, str) else ",".join(given)
    if text.count(",") >= HOSTS_LIMIT:
        raise ValueError(f"{text.count(',') + 1} names; expected at most {HOSTS_LIMIT}")
    return tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


@dataclass(frozen=True)
class OfForm:
    """A string that must match a regular expression as a whole; ``expected`` describes it in the error message."""

    form: str
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.form}$"}

    def _read(self, text: str) -> str:
        if not re.fullmatch(self.form, text, re.ASCII):
            raise ValueError(f"expected {self.expected}")
        return text


def _digits(given: Any) -> Any:
    """Reject ``1_0`` and `` 1``, which pydantic accepts but the OpenAPI document does not describe."""
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise ValueError("expected a whole number")
    return given


def _not_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("expected a comma-separated list of node names")
    return names


HostName = Annotated[str, OfForm(HOST_NAME, "the name of a node: lower case letters, digits, '-' and '.'")]


class StatusParameters(BaseModel):
    """The parameters of /status. ``model_extra`` holds the parameters of checks as text; their declarations validate
    them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    check: Annotated[tuple[str, ...] | None, BeforeValidator(_split)] = Field(
        None,
        description="comma-separated list of checks, or all. Default: run all light checks, and report the last "
        f"results of the heavy ones among {', '.join(HEAVY_BY_DEFAULT)}. A heavy check named here runs on idle nodes",
    )
    host: Annotated[tuple[HostName, ...] | None, BeforeValidator(_split), AfterValidator(_not_empty)] = Field(
        None, description="comma-separated list of nodes, or all. Default: all. Adds to the nodes of job and nodelabel"
    )
    batch: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None,
        ge=1,
        le=BATCH_LIMIT,
        description="number of nodes to query at the same time. Default and upper bound: the agent's setting "
        "fleet_at_once",
    )
    serverspernode: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None,
        ge=1,
        le=SERVERS_LIMIT,
        description="iperf: number of servers on each node, divided among its secondary interfaces; at least one per "
        "interface",
    )
    clientsperiface: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None, ge=1, le=CLIENTS_LIMIT, description="iperf: number of clients for each server"
    )
    plane: Plane | None = Field(
        None,
        description="iperf: data (default) measures the secondary interfaces; mgmt measures eth0 with one server and "
        "one client per node",
    )
    workload: Literal["ring"] | None = Field(
        None, description="iperf: accepted for Autopilot's clients, without effect; nodes are always measured in pairs"
    )
    pclients: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None, ge=1, le=CLIENTS_LIMIT, description="iperf: Autopilot's name for clientsperiface"
    )
    startport: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None,
        ge=1,
        le=65535,
        description="iperf: accepted for Autopilot's clients, without effect; servers use ports "
        f"{FIRST_PORT} to {FIRST_PORT + SERVERS_LIMIT - 1}",
    )
    job: Annotated[str | None, OfForm(JOB, "NAMESPACE:key=value")] = Field(
        None, description="NAMESPACE:key=value: the nodes on which pods with this label run"
    )
    nodelabel: Annotated[str | None, OfForm(LABELS, "key=value[,key=value…], at most 16")] = Field(
        None, description="key=value[,…]: the nodes with these labels"
    )
    force: Flag = Field(
        "false",
        description="true: run heavy checks on busy nodes too. Allowed over loopback, or with a Kubernetes token of "
        "a user who may patch nodehealths.muster.dev",
    )
    format: Format | None = Field(
        None,
        description="text (default), json, or jsonl (one line for each node, sent as soon as it answers). The header "
        "Accept selects a format too",
    )


OWN = tuple(StatusParameters.model_fields)


class IperfOptions(msgspec.Struct, frozen=True):
    """The options of a network measurement. None: not given."""

    servers_per_node: int | None = None
    clients_per_iface: int | None = None
    plane: Plane = "data"


class StatusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A valid query, as far as one agent can tell: whether the nodes exist is checked later.

    checks:    the requested checks in the requested order, with their parameters on this node
    named:     the query names its checks; otherwise heavy checks report their last result
    hosts:     node names, each once; None: not given, or all
    batch:     number of nodes to query at the same time; None: not given
    job, nodelabel: selectors as given, syntactically valid; empty: not given
    network:   parameters of /status for iperf, as given
    given:     parameters of the requested checks, as given; passed on to peers
    guarded:   those of ``given`` that need authorization
    notes:     notes to the caller about parameters without effect
    """

    checks: Sequence[tuple[NodeCheck, Parameters]]
    named: bool
    hosts: tuple[str, ...] | None = None
    batch: int | None = None
    job: str = ""
    nodelabel: str = ""
    iperf: IperfOptions = IperfOptions()
    network: Mapping[str, str] = {}
    fmt: str = "text"
    force: bool = False
    given: Mapping[str, str] = {}
    guarded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def check_names(self) -> tuple[str, ...]:
        return tuple(running.name for running, _ in self.checks)

    def for_peer(self, node: str, checks: Sequence[str] | None = None) -> dict[str, str]:
        """The query that asks the agent of ``node`` about its own node. checks: only these; None: all."""
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
        """The equivalent query for one node, for people to copy."""
        query = self.for_peer(node, self.check_names)
        if NETWORK_CHECK in self.check_names:
            query |= self.network
        return urlencode(query, safe=",:=/")


def read_query(given: StatusParameters, running: Mapping[str, NodeCheck], accept: str = "") -> StatusQuery:
    """``accept``: the header. Raises BadQuery."""
    others: dict[str, str] = given.model_extra or {}
    chosen = _chosen(given.check, running)
    taken, notes = _given(others, chosen, running)
    clients = given.pclients if given.clientsperiface is None else given.clientsperiface
    network = {"serverspernode": given.serverspernode, "clientsperiface": clients, "plane": given.plane}
    return StatusQuery(
        checks=[(each, _parameters(each, others)) for each in chosen],
        named=given.check is not None,
        # as in Autopilot, all is the same as no host: job and nodelabel still select
        hosts=None if given.host is None or ALL_HOSTS in given.host else given.host,
        batch=given.batch,
        job=given.job or "",
        nodelabel=given.nodelabel or "",
        iperf=IperfOptions(given.serverspernode, clients, given.plane or "data"),
        network={name: str(value) for name, value in network.items() if value is not None},
        fmt=given.format or accepted_format(accept),
        force=given.force == "true",
        given=taken,
        guarded=_guarded(taken, chosen),
        notes=(*notes, *_notes_for_autopilot(given)),
    )


def _notes_for_autopilot(given: StatusParameters) -> Iterator[str]:
    if given.pclients is not None and given.clientsperiface is not None:
        yield "pclients has no effect: clientsperiface is given, which means the same"
    if given.workload is not None:
        yield "workload has no effect: iperf measures pairs of nodes, in rounds of disjoint pairs"
    if given.startport is not None:
        last = FIRST_PORT + SERVERS_LIMIT - 1
        yield f"startport has no effect: iperf servers use ports {FIRST_PORT} to {last}"


def accepted_format(accept: str) -> str:
    """The format that the header Accept selects."""
    for part in accept.lower().split(","):
        if fmt := ACCEPTED.get(part.partition(";")[0].strip()):
            return fmt
    return "text"


def _chosen(names: Sequence[str] | None, running: Mapping[str, NodeCheck]) -> list[NodeCheck]:
    if names is None:
        return [each for each in running.values() if each.check.cost is Cost.LIGHT or each.name in HEAVY_BY_DEFAULT]
    try:
        checks = select_checks(names, {name: each.check for name, each in running.items()})
    except UnknownCheck as error:
        raise UnknownName(error.explain(LIST_CHECKS), "check", [*error.known, "all"]) from error
    if not checks:
        raise BadQuery(f"check: '': expected all or some of {', '.join(sorted(running))}")
    return [running[check.name] for check in checks]


def _given(
    others: Mapping[str, str], chosen: Sequence[NodeCheck], running: Mapping[str, NodeCheck]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Those of ``others`` that the chosen checks take, and notes about the rest. Every value is validated, also for
    checks that are not chosen."""
    given: dict[str, str] = {}
    notes = []
    for name, value in others.items():
        owners = [each for each in running.values() if _field_of(name, each.name, each.check.parameters.model_fields)]
        if not owners:
            fields = {field for each in running.values() for field in each.check.parameters.model_fields}
            known = [*OWN, *sorted(fields)]
            raise UnknownName(explain_unknown("parameter", name, known, LIST_PARAMETERS), "parameter", known, OWN)
        _suits_all(name, value, owners)
        if any(each in chosen for each in owners):
            given[name] = value
            continue
        names = " and ".join(each.name for each in owners)
        notes.append(f"{name} has no effect: it is a parameter of {names}, which this query does not run")
    return given, tuple(notes)


def _suits_all(name: str, value: str, owners: Sequence[NodeCheck]) -> None:
    """Raises BadQuery if the value is invalid for any check that has the parameter, requested or not. So the values
    allowed for a name are the same in every query and can be documented."""
    for each in owners:
        try:
            _parameters(each, {name: value})
        except BadQuery as error:
            if len(owners) == 1:
                raise
            others = " and ".join(f"{other.name}.{name}" for other in owners if other is not each)
            raise BadQuery(f"{error} (for {each.name}; use {others} to leave {each.name} out)") from error


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
    """The field of ``check`` that ``name`` or ``check.name`` refers to; empty: none."""
    field = name.removeprefix(f"{check}.")
    return field if field in fields else ""


def _parameters(running: NodeCheck, given: Mapping[str, str]) -> Parameters:
    """The check's configured parameters, overridden by those given. Raises BadQuery."""
    model = running.check.parameters
    names: dict[str, str] = {}
    for name in sorted(given, key=lambda name: "." in name):  # CHECK.NAME overrides NAME
        if field := _field_of(name, running.name, model.model_fields):
            names[field] = name
    if not names:
        return running.parameters
    for field, name in names.items():
        if field in model.configured:
            raise BadQuery(
                f"{name}: only the configuration sets it (checks.{running.name}.parameters.{field}); leave it out"
            )
        if model.model_fields[field].annotation is bool:
            _check_flag(name, given[name])
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
            f"{', '.join(changed)}: {running.name} runs all the time, so a query cannot change its parameters; "
            f"set them in the agent's configuration (checks.{running.name}.parameters)"
        )
    return parameters


def _check_flag(name: str, text: str) -> None:
    """Reject ``yes`` and ``1``, which pydantic accepts but the OpenAPI document does not describe."""
    if text not in FLAGS:
        raise BadQuery(f"{name}: {quote(text)}: expected {' or '.join(FLAGS)}")

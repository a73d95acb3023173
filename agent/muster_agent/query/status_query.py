"""What a /status query asks for: names and values are held against the declarations, before anything runs anywhere.

FastAPI and pydantic read what /status itself takes (StatusParameters); what checks take is read by their own models.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
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
from muster_checks.base.vocabulary import shorten
from muster_checks.registry import UnknownCheck, select_checks
from muster_kube.http.bad_request import BadRequest
from muster_kube.process.settings import explain, quote

HEAVY_BY_DEFAULT = ("pciebw", "dcgm", "remapped", "ping")  # Autopilot's default set, beside all that is light
ACCEPTED = {"application/json": "json", "application/jsonl": "jsonl", "application/x-ndjson": "jsonl"}
Format = Literal["text", "json", "jsonl"]
Plane = Literal["data", "mgmt"]
Flag = Literal["false", "true"]
PLANES: tuple[Plane, ...] = get_args(Plane)
FLAGS: tuple[Flag, ...] = get_args(Flag)
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


class BadQuery(BadRequest):
    """What, where, what was found, what is allowed."""


def _split(given: Any) -> Any:
    """A comma list. FastAPI hands over a list of what stands behind each ``name=``, of which there is one."""
    text = given if isinstance(given, str) else ",".join(given)
    if text.count(",") >= HOSTS_LIMIT:
        raise ValueError(f"{text.count(',') + 1} names; expected at most {HOSTS_LIMIT}")
    return tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


@dataclass(frozen=True)
class OfForm:
    """A string that must match a regular expression completely; ``expected`` describes that form."""

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
    """pydantic takes ``1_0`` and `` 1``, too, of which the OpenAPI document says nothing."""
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise ValueError("expected a whole number")
    return given


def _not_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("expected names of nodes, comma separated")
    return names


HostName = Annotated[str, OfForm(HOST_NAME, "the name of a node: lower case letters, digits, '-' and '.'")]


class StatusParameters(BaseModel):
    """What /status takes. ``model_extra``: parameters of checks, as text; the declarations say which there are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    check: Annotated[tuple[str, ...] | None, BeforeValidator(_split)] = Field(
        None,
        description="comma list of checks, or all; by default the light ones, and the last results of "
        f"{', '.join(HEAVY_BY_DEFAULT)} where those are heavy. A heavy check that is named runs where its node is idle",
    )
    host: Annotated[tuple[HostName, ...] | None, BeforeValidator(_split), AfterValidator(_not_empty)] = Field(
        None, description="comma list of nodes; by default all"
    )
    batch: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None,
        ge=1,
        le=BATCH_LIMIT,
        description="how many nodes at once; by default as many as the agent's setting fleet_at_once allows, which "
        "bounds any number given here",
    )
    serverspernode: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None,
        ge=1,
        le=SERVERS_LIMIT,
        description="iperf: servers on a node, spread over its secondary interfaces, at least one each",
    )
    clientsperiface: Annotated[int | None, BeforeValidator(_digits)] = Field(
        None, ge=1, le=CLIENTS_LIMIT, description="iperf: clients towards one server"
    )
    plane: Plane = Field(
        "data",
        description="iperf: data (default; the secondary interfaces) or mgmt (eth0; one server a node, one client)",
    )
    job: Annotated[str | None, OfForm(JOB, "NAMESPACE:key=value")] = Field(
        None, description="NAMESPACE:key=value: only the nodes on which pods with that label run"
    )
    nodelabel: Annotated[str | None, OfForm(LABELS, "key=value[,key=value…], at most 16")] = Field(
        None, description="key=value[,…]: only nodes with these labels"
    )
    force: Flag = Field(
        "false",
        description="true: heavy checks run beside somebody's work, too; over loopback, or with a Kubernetes token of "
        "a user who may patch nodehealths.muster.dev",
    )
    format: Format | None = Field(
        None,
        description="text (default), json, or jsonl (a line for each node, as it answers); the header Accept asks for "
        "them, too",
    )


OWN = tuple(StatusParameters.model_fields)


class IperfOptions(msgspec.Struct, frozen=True):
    """As asked for; None: not given."""

    servers_per_node: int | None = None
    clients_per_iface: int | None = None
    plane: Plane = "data"


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


def read_query(given: StatusParameters, running: Mapping[str, NodeCheck], accept: str = "") -> StatusQuery:
    """``accept``: the header. Raises BadQuery."""
    others: dict[str, str] = given.model_extra or {}
    chosen = _chosen(given.check, running)
    taken, notes = _given(others, chosen, running)
    return StatusQuery(
        checks=[(each, _parameters(each, others)) for each in chosen],
        named=given.check is not None,
        hosts=given.host,
        batch=given.batch,
        job=given.job or "",
        nodelabel=given.nodelabel or "",
        iperf=IperfOptions(given.serverspernode, given.clientsperiface, given.plane),
        fmt=given.format or _accepted(accept),
        force=given.force == "true",
        given=taken,
        guarded=_guarded(taken, chosen),
        notes=notes,
    )


def _accepted(accept: str) -> str:
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
        raise BadQuery(shorten(str(error), 2048)) from error
    if not checks:
        raise BadQuery(f"check: '': expected all or some of {', '.join(sorted(running))}")
    return [running[check.name] for check in checks]


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
            f"{', '.join(changed)}: {running.name} never rests, so it cannot be run with other parameters; "
            f"they are set in the agent's configuration (checks.{running.name}.parameters)"
        )
    return parameters


def _check_flag(name: str, text: str) -> None:
    """pydantic takes ``yes`` and ``1``, too, of which the OpenAPI document says nothing."""
    if text not in FLAGS:
        raise BadQuery(f"{name}: {quote(text)}: expected {' or '.join(FLAGS)}")

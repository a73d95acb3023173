"""FLEET.yaml of `muster simulate`: nodes, people, repairs, tests, faults to generate and jobs.

Models only, and the error of a file that is not valid. Every time that the file leaves out has a default with its
source beside it.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from muster_checks.base.user_yaml import field_path, line_of, load_yaml, location_in, show_value, yaml_problem
from muster_checks.registry import SHIPPED
from muster_kube.nodehealth import RESERVED_CHECKS
from muster_tainter.policy.check_facts import has_period, is_heavy
from muster_tainter.policy.recovery import FOREIGN_CHECKS
from muster_tainter.policy.sections.heavy_checks import AnyDuration, Duration, parse_duration
from muster_tainter.policy.strict_model import StrictModel
from muster_tainter.simulation.scenario.node_groups import DEVICES_LIMIT, NODES_LIMIT, Group

SIZE_LIMIT = 8 << 20  # bytes: 100,000 names of nodes
COMPONENT = r"^[a-z]+(/[A-Za-z0-9:._-]{1,60})?$"
CHECK = r"^[a-z][a-z0-9]{0,62}$"
REASON = r"^[A-Za-z0-9_]{0,63}$"
NO_CHECKS = (*RESERVED_CHECKS, *FOREIGN_CHECKS)  # names that no agent reports
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Times = Annotated[float, Field(ge=0.0, le=1000.0)]
RepairedClass = Literal["reset", "reboot", "replace", "contact"]
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()  # a typing error in a year must not simulate millennia
_HOUR = 3600.0
_DAY = 24 * _HOUR


class FleetError(Exception):
    """The fleet, fault or job file is not valid. One problem a line: file, place, what was found, what is allowed."""


def _instant(value: object) -> object:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("expected a time such as 2026-01-01T00:00:00Z") from None
    if not isinstance(value, datetime):
        raise ValueError("expected a time such as 2026-01-01T00:00:00Z")  # noqa: TRY004 - pydantic expects ValueError
    if value.tzinfo is None:
        raise ValueError("expected a time with its zone, such as 2026-01-01T00:00:00Z or 2026-01-01T02:00:00+02:00")
    second = value.timestamp()
    if not 0 <= second < LATEST:
        raise ValueError("expected a time from 1970 to 2199")
    return float(int(second))


Instant = Annotated[float, BeforeValidator(_instant)]
"""Seconds since the epoch."""


class PeopleTimes(StrictModel):
    """The mean times in which people repair a fault of a class that no repair of the policy covers."""

    # LANL's outages last a median of 1 h and a mean of 6 h (LA-UR-05-7318); a part takes a delivery
    reset: Duration = 0.5 * _HOUR
    reboot: Duration = 1 * _HOUR
    replace: Duration = 48 * _HOUR
    contact: Duration = 24 * _HOUR

    def of(self, fault_class: str) -> float:
        """In seconds."""
        return float(getattr(self, fault_class, self.contact))


class People(StrictModel):
    """clear: from the repair until the person clears faults that no proof closes."""

    repair: PeopleTimes = PeopleTimes()
    clear: AnyDuration = 0.5 * _HOUR


class RepairEffect(StrictModel):
    """What a repair of the policy does. takes: seconds; helps: share of attempts that repair a fault of that class or
    a milder one."""

    takes: Duration
    helps: Share = 0.8


class RepairEffects(StrictModel):
    reset: RepairEffect = RepairEffect.model_construct(takes=120.0, helps=0.8)
    reboot: RepairEffect = RepairEffect.model_construct(takes=600.0, helps=0.8)
    replace: RepairEffect = RepairEffect.model_construct(takes=2 * _DAY, helps=0.95)
    contact: RepairEffect = RepairEffect.model_construct(takes=1 * _DAY, helps=0.95)

    def of(self, fault_class: str) -> RepairEffect:
        effect: RepairEffect = getattr(self, fault_class)
        return effect


def parse_planned(value: object) -> float:
    """Seconds: at least ten minutes, as a round of heavy checks takes minutes. Raises ValueError."""
    return parse_duration(value, least_s=600.0)


PlannedPeriod = Annotated[float, BeforeValidator(parse_planned)]


class Agents(StrictModel):
    """detect: from a fault to the agent's report; light, heavy: how long one run of a check takes; finds: share of
    verifications and of planned checks of a broken node that fail; planned: how often a heavy check is due on a node
    (``checks.NAME.period`` of the chart); without it, none is planned."""

    detect: AnyDuration = 30.0
    light: AnyDuration = 5.0
    heavy: AnyDuration = 60.0  # a round of pciebw, gpumem and dcgm takes about three minutes (docs/policy.md)
    finds: Share = 1.0
    planned: Annotated[dict[str, PlannedPeriod], Field(max_length=16)] = Field(default_factory=dict)

    @field_validator("planned")
    @classmethod
    def _heavy(cls, planned: dict[str, float]) -> dict[str, float]:
        for check in planned:
            require_heavy(check)
        return planned


def require_heavy(check: str) -> None:
    """A heavy check that agents find due. Raises ValueError."""
    heavy = [name for name in sorted(SHIPPED) if is_heavy(name) and has_period(name)]
    if check not in heavy:
        raise ValueError(f"{check[:40]!r}: expected a heavy check: {', '.join(heavy)}")


class FaultRate(StrictModel):
    """Faults of one kind. per_node_year: mean number. lasts: mean time until it is over by itself or by people; without
    it, until it is repaired. models: of groups; without it, all. fatal: share that ends the node's job at once. hidden:
    only its check, a heavy one, finds it, when it runs."""

    fault_class: RepairedClass = Field(alias="class")
    per_node_year: Annotated[float, Field(ge=0.0, le=10_000.0)]
    component: Annotated[str, Field(pattern=COMPONENT)] = "gpu/0"
    check: Annotated[str, Field(pattern=CHECK)] = "dmesg"
    reason: Annotated[str, Field(pattern=REASON)] = ""
    lasts: Duration | None = None
    models: tuple[str, ...] = ()
    fatal: Share = 1.0
    hidden: bool = False

    @field_validator("check")
    @classmethod
    def _of_agents(cls, check: str) -> str:
        if check in NO_CHECKS:
            raise ValueError("expected a check that agents run")
        return check

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.hidden:
            require_heavy(self.check)
        return self


class Infants(StrictModel):
    """Nodes fail ``times`` as often while they are younger than ``within``."""

    times: Times
    within: Duration


class Lemons(StrictModel):
    """A ``share`` of the nodes that fails ``times`` as often."""

    share: Share
    times: Times


class Returns(StrictModel):
    """A ``share`` of the faults was not really repaired: it comes back after a mean of ``within``."""

    share: Share
    within: Duration


class Outages(StrictModel):
    """All nodes of a domain fail together."""

    per_domain_year: Annotated[float, Field(ge=0.0, le=10_000.0)]
    lasts: Duration
    fault_class: RepairedClass = Field(default="reboot", alias="class")


class Generator(StrictModel):
    rates: Annotated[tuple[FaultRate, ...], Field(min_length=1, max_length=64)]
    infants: Infants | None = None
    lemons: Lemons | None = None
    returns: Returns | None = None
    outages: Outages | None = None


class JobKind(StrictModel):
    """lasts: work of a job without interruptions. share: weight in the queue. gang: one failed node stops the job; else
    it is as many jobs of one node. group: where it runs; without it, in any group that has room. devices: accelerators
    that it needs of each node; without it, all.

    checkpoint: time of work between two checkpoints; checkpoint_cost: of each; restart: from the start of the pods to
    the first step
    """

    name: Annotated[str, Field(min_length=1, max_length=63)]
    nodes: Annotated[int, Field(ge=1, le=NODES_LIMIT)]
    devices: Annotated[int, Field(ge=1, le=DEVICES_LIMIT)] | None = None
    lasts: Duration
    share: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    gang: bool = True
    group: str | None = None
    checkpoint: Duration = 1 * _HOUR
    checkpoint_cost: AnyDuration = 60.0
    restart: AnyDuration = 600.0


class Workload(StrictModel):
    """kinds: of the jobs; ``queue`` of them wait at all times, so that demand never ends. requeue: from the end of a
    job's pods until it may start again. crash: until a job that starts on a broken node fails."""

    kinds: Annotated[tuple[JobKind, ...], Field(max_length=64)] = ()
    queue: Annotated[int, Field(ge=1, le=1000)] = 4
    requeue: AnyDuration = 60.0
    crash: Duration = 300.0


class FleetFile(StrictModel):
    """start, end: of the simulation; without them, of the fault file. faults: to generate; none with --faults FILE.

    idle_faults: what a recorded fault does on a node that is out of use, although its hardware was repaired: it happens
    as recorded, or it waits until the node works again, because only load brings it out
    """

    groups: Annotated[tuple[Group, ...], Field(min_length=1, max_length=64)]
    start: Instant | None = None
    end: Instant | None = None
    people: People = People()
    repairs: RepairEffects = RepairEffects()
    agents: Agents = Agents()
    faults: Generator | None = None
    idle_faults: Literal["happen", "wait"] = "happen"
    workload: Workload = Workload()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [group.name for group in self.groups]
        for i, name in enumerate(names):
            first = names.index(name)
            if first < i:
                raise ValueError(f'groups[{i}].name: "{name}": expected a unique name: groups[{first}] has it')
        if sum(group.size for group in self.groups) > NODES_LIMIT:
            raise ValueError(f"groups: expected at most {NODES_LIMIT} nodes in all")
        if sum(group.names_from is not None for group in self.groups) > 1:
            raise ValueError("groups: expected namesFrom in one group only")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("end: expected a time after start")
        for i, kind in enumerate(self.workload.kinds):
            problem = self.too_large(kind)
            if problem:
                raise ValueError(f"workload.kinds[{i}].{problem}")
        return self

    def too_large(self, kind: JobKind) -> str:
        """Why the job can never run: field, value and limit; empty if it can. A gang runs in one group."""
        groups = [group for group in self.groups if kind.group in (None, group.name)]
        if not groups:
            return f'group: "{kind.group}": expected one of {", ".join(group.name for group in self.groups)}'
        largest = max(group.devices for group in groups)
        if kind.devices is not None and kind.devices > largest:
            return f"devices: {kind.devices}: expected at most {largest}, the accelerators of a node"
        groups = [group for group in groups if kind.devices is None or kind.devices <= group.devices]
        most = max(group.size for group in groups)
        if kind.gang and kind.nodes > most:
            return f"nodes: {kind.nodes}: expected at most {most}, the nodes of the largest group"
        return ""

    @property
    def size(self) -> int:
        """Nodes."""
        return sum(group.size for group in self.groups)


def load_fleet(path: Path) -> FleetFile:
    """Raises FleetError, OSError."""
    with path.open("rb") as file:
        raw = file.read(SIZE_LIMIT + 1)
    if len(raw) > SIZE_LIMIT:
        raise FleetError(f"{path}: expected at most {SIZE_LIMIT} bytes")
    try:
        data = load_yaml(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FleetError(f"{path}: {yaml_problem(error)}") from None
    if not isinstance(data, dict):
        raise FleetError(f"{path}: expected a mapping with the key groups")
    try:
        return FleetFile.model_validate(data)
    except ValidationError as error:
        raise FleetError("\n".join(f"{path}:{line}" for line in _problems(error, raw))) from None


def _problems(error: ValidationError, raw: bytes) -> Iterator[str]:
    """``LINE: field: value: what is allowed``."""
    details = error.errors()
    for detail in details:
        place = detail["loc"]
        inside = any(len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in details)
        if detail["type"] == "too_short" and inside:
            continue  # a list whose only entry is not valid
        where = field_path(place)
        found = "" if isinstance(detail["input"], dict) else f"{show_value(detail['input'])}: "
        if detail["type"] == "extra_forbidden":
            text = f"unknown key: expected {', '.join(_keys_at(place))}"
        else:
            text = str(detail.get("ctx", {}).get("error", detail["msg"]))
        yield f"{line_of(raw, place or location_in(text))}: {f'{where}: ' if where else ''}{found}{text}"


def _keys_at(place: Sequence[str | int]) -> list[str]:
    """The keys that are allowed where an unknown one was found."""
    model: type[BaseModel] = FleetFile
    for part in place[:-1]:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part in fields:
            model = next(_models(fields[str(part)].annotation), model)
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in ``tuple[Group, ...]``, ``Domain | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)

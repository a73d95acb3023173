"""Converts faults between their text form, ``10.1.1.1/3`` and ``10.1.1.1-10.1.1.2``, and the numbers of the fleet."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict  # pydantic reads the standard library's from Python 3.12 on

from muster_operator.vipu.simulator.fleet import (
    IPUS_OF_MACHINE,
    InjectedFaults,
    InvalidCommand,
    SimulatedFleet,
    check_name,
    has_link,
    locate_ipu,
    machine_address,
    number_machines,
    shorten_repr,
)

STUCK_LIMIT = 64
SLOW_LIMIT_S = 600.0
LOST_LIMIT = 1000


class FaultRequest(BaseModel):
    """The body of ``POST /faults``; absent fields stay unchanged."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, allow_inf_nan=False
    )
    ipu: str | None = Field(default=None, description="an IPU that does not train: MACHINE/INDEX")
    link: str | None = Field(default=None, description="a link that is down: MACHINE-MACHINE")
    down: bool | None = Field(default=None, description="the controller does not answer")
    slow: Annotated[float, Field(ge=0, le=SLOW_LIMIT_S)] | None = Field(
        default=None, description="seconds before each answer"
    )
    lose_answers: Annotated[int, Field(ge=0, le=LOST_LIMIT)] | None = Field(
        default=None, description="number of changes that are made but not answered"
    )
    stuck: str | None = Field(
        default=None, description="an existing or future partition whose passing state does not end"
    )
    vanish: str | None = Field(default=None, description="a partition that the controller forgets at once")


class DescribedFaults(TypedDict):
    """Faults in their text form."""

    ipus: list[str]
    links: list[str]
    down: bool
    slow: float
    loseAnswers: int
    stuck: list[str]


def add_faults(fleet: SimulatedFleet, request: FaultRequest) -> InjectedFaults:
    """Raises InvalidCommand."""
    faults = fleet.faults
    if request.ipu is not None:
        faults = msgspec.structs.replace(faults, ipus=_add_number(faults.ipus, _parse_ipu(fleet, request.ipu)))
    if request.link is not None:
        faults = msgspec.structs.replace(faults, links=_add_number(faults.links, _parse_link(fleet, request.link)))
    if request.down is not None:
        faults = msgspec.structs.replace(faults, down=request.down)
    if request.slow is not None:
        faults = msgspec.structs.replace(faults, slow=request.slow)
    if request.lose_answers is not None:
        faults = msgspec.structs.replace(faults, lose_answers=request.lose_answers)
    if request.stuck is not None:
        check_name(request.stuck, "stuck")
        if len(faults.stuck) >= STUCK_LIMIT:
            raise InvalidCommand(f"stuck: expected at most {STUCK_LIMIT} partitions")
        faults = msgspec.structs.replace(faults, stuck=tuple({*faults.stuck, request.stuck}))
    return faults


def remove_faults(fleet: SimulatedFleet, ended: Mapping[str, str]) -> InjectedFaults:
    """Remove all faults, or those in ``ended`` by its keys ipu, link and stuck. Raises InvalidCommand."""
    if not ended:
        return InjectedFaults()
    faults = fleet.faults
    for key, text in ended.items():
        if key == "ipu":
            number = _parse_ipu(fleet, text)
            faults = msgspec.structs.replace(faults, ipus=tuple(each for each in faults.ipus if each != number))
        elif key == "link":
            number = _parse_link(fleet, text)
            faults = msgspec.structs.replace(faults, links=tuple(each for each in faults.links if each != number))
        else:
            faults = msgspec.structs.replace(faults, stuck=tuple(each for each in faults.stuck if each != text))
    return faults


def describe_faults(fleet: SimulatedFleet) -> DescribedFaults:
    faults = fleet.faults
    ipus = [locate_ipu(fleet, number) for number in faults.ipus]
    return {
        "ipus": [f"{ipu.machine}/{ipu.index}" for ipu in ipus],
        "links": [f"{machine_address(fleet, one)}-{machine_address(fleet, one + 1)}" for one in faults.links],
        "down": faults.down,
        "slow": faults.slow,
        "loseAnswers": faults.lose_answers,
        "stuck": sorted(faults.stuck),
    }


def _add_number(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, number}))


def _parse_ipu(fleet: SimulatedFleet, text: str) -> int:
    machine, _, index = text.partition("/")
    known = {machine_address(fleet, one): one for one in number_machines(fleet)}
    if machine not in known or index not in map(str, range(IPUS_OF_MACHINE)):
        last = locate_ipu(fleet, fleet.ipus - 1)
        first = locate_ipu(fleet, 0)
        raise InvalidCommand(
            f"ipu: {shorten_repr(text)}: expected MACHINE/INDEX, "
            f"{first.machine}/{first.index} to {last.machine}/{last.index}"
        )
    return known[machine] * IPUS_OF_MACHINE + int(index)


def _parse_link(fleet: SimulatedFleet, text: str) -> int:
    links = {
        f"{machine_address(fleet, one)}-{machine_address(fleet, one + 1)}": one
        for one in number_machines(fleet)
        if has_link(fleet, one)
    }
    if text not in links:
        allowed = (
            f"a machine and the next one of its rack, such as {next(iter(links))}"
            if links
            else "none: there is only one machine"
        )
        raise InvalidCommand(f"link: {shorten_repr(text)}: expected {allowed}")
    return links[text]

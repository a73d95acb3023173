"""Faults as people name them, ``10.1.1.1/3`` and ``10.1.1.1-10.1.1.2``, and as the fleet counts them."""

from collections.abc import Mapping
from typing import Any

import msgspec

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


class FaultRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of ``POST /faults``; what is not given stays. ipu: MACHINE/INDEX; link: MACHINE-MACHINE; slow: seconds
    before each answer; lose_answers: changes that are made and not answered; stuck: a partition whose passing state
    does not end, made or still to be made; vanish: a partition that is forgotten at once."""

    ipu: str | None = None
    link: str | None = None
    down: bool | None = None
    slow: float | None = None
    lose_answers: int | None = None
    stuck: str | None = None
    vanish: str | None = None


REMOVABLE = ("ipu", "link", "stuck")  # one by one


def add_faults(fleet: SimulatedFleet, asked: FaultRequest) -> InjectedFaults:
    """Raises InvalidCommand."""
    faults = fleet.faults
    if asked.ipu is not None:
        faults = msgspec.structs.replace(faults, ipus=_add_number(faults.ipus, _parse_ipu(fleet, asked.ipu)))
    if asked.link is not None:
        faults = msgspec.structs.replace(faults, links=_add_number(faults.links, _parse_link(fleet, asked.link)))
    if asked.down is not None:
        faults = msgspec.structs.replace(faults, down=asked.down)
    if asked.slow is not None:
        if not 0 <= asked.slow <= SLOW_LIMIT_S:
            raise InvalidCommand(f"slow: {asked.slow}: expected 0 to {SLOW_LIMIT_S:g} seconds")
        faults = msgspec.structs.replace(faults, slow=asked.slow)
    if asked.lose_answers is not None:
        if not 0 <= asked.lose_answers <= 1000:
            raise InvalidCommand(f"loseAnswers: {shorten_repr(asked.lose_answers)}: expected 0 to 1000")
        faults = msgspec.structs.replace(faults, lose_answers=asked.lose_answers)
    if asked.stuck is not None:
        check_name(asked.stuck, "stuck")
        if len(faults.stuck) >= STUCK_LIMIT:
            raise InvalidCommand(f"stuck: {STUCK_LIMIT} are so already, which is the most")
        faults = msgspec.structs.replace(faults, stuck=tuple({*faults.stuck, asked.stuck}))
    return faults


def remove_faults(fleet: SimulatedFleet, ended: Mapping[str, str]) -> InjectedFaults:
    """All of them gone, or those named by ``ipu``, ``link`` and ``stuck``. Raises InvalidCommand."""
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
        elif key == "stuck":
            faults = msgspec.structs.replace(faults, stuck=tuple(each for each in faults.stuck if each != text))
        else:
            raise InvalidCommand(f"query: {shorten_repr(key)}: expected {', '.join(REMOVABLE)}, or nothing for all")
    return faults


def describe_faults(fleet: SimulatedFleet) -> dict[str, Any]:
    """As people name them."""
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
        allowed = f"a machine and the next of its rack, as {next(iter(links))}" if links else "none: one machine only"
        raise InvalidCommand(f"link: {shorten_repr(text)}: expected {allowed}")
    return links[text]

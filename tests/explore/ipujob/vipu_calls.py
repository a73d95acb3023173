"""V-IPU's simulator as a pure function: what a call changes, and what it answers.

Its clock stands still at 0, so a passing state ends in a step of its own.
"""

from collections.abc import Callable
from functools import lru_cache

import msgspec
from tests.explore.api_server import Answer, Request

from muster_operator.vipu.simulator import fleet as vipu
from muster_operator.vipu.simulator.fleet import SimulatedFleet, SimulatorRefusal

PASSING_S = 1.0


@lru_cache(maxsize=1 << 14)
def call_vipu(fleet: SimulatedFleet, request: Request) -> tuple[SimulatedFleet, Answer]:
    values = msgspec.json.decode(request.body)
    changes: dict[str, Callable[..., SimulatedFleet]] = {
        "create": vipu.create_partition, "reset": vipu.reset_partition, "remove": vipu.remove_partition
    }  # fmt: skip
    if request.method in changes:
        try:
            return changes[request.method](fleet, 0.0, *values), Answer(200, b"null")
        except SimulatorRefusal as refused:
            return fleet, Answer(409, refused.why.encode())
    found: object
    match request.method:
        case "list":
            found = [
                {"name": held.name, "size": held.size, "gcds": held.gcds, "state": held.state,
                 "ipus": [vipu.locate_ipu(fleet, number) for number in held.ipus], "message": held.message}
                for held in fleet.partitions
            ]  # fmt: skip
        case "capacity":
            found = {"total": fleet.ipus, "free": vipu.count_free_ipus(fleet, 0.0)}
        case _:
            found = vipu.count_free_blocks(fleet, 0.0, values[0])
    return fleet, Answer(200, msgspec.json.encode(found))


def end_passing(fleet: SimulatedFleet, name: str) -> SimulatedFleet:
    """Its passing state has."""
    found = tuple(msgspec.structs.replace(each, until=0.0) if each.name == name else each for each in fleet.partitions)
    return vipu.advance(msgspec.structs.replace(fleet, partitions=found), 0.0)

"""The state of a V-IPU controller as one value: partitions, faults, and the end times of operations in progress.

Every function takes a fleet and the time and returns a fleet; nothing changes in the background. A simulator that was
killed therefore continues: an operation ends at its time, whenever someone looks.
"""

import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from muster_operator.vipu.controller import Ipu

IPUS_OF_MACHINE = 4
MACHINES_OF_RACK = 16  # an IPU-POD64
IPUS_LIMIT = 64 * 200  # 200 racks: the third octet of an address
SIZE_LIMIT = 1 << 20  # of a request, whatever the fleet has
NAME_PATTERN = "[A-Za-z0-9]([-._A-Za-z0-9]{0,251}[A-Za-z0-9])?"
_NAME = re.compile(NAME_PATTERN, re.ASCII)

SimulatedState = Literal["CREATING", "ACTIVE", "RESETTING", "REMOVING", "ERROR"]
PASSING: tuple[SimulatedState, ...] = ("CREATING", "RESETTING", "REMOVING")


class SimulatorRefusal(Exception):
    """The controller refuses a request. ``why``: for programs."""

    why: Literal["Invalid", "NoRoom", "Exists", "NotThere", "Busy"]


class InvalidCommand(SimulatorRefusal):
    why = "Invalid"


class NoFreeBlock(SimulatorRefusal):
    why = "NoRoom"


class NameTaken(SimulatorRefusal):
    why = "Exists"


class UnknownPartition(SimulatorRefusal):
    why = "NotThere"


class PartitionBusy(SimulatorRefusal):
    why = "Busy"


class SimulatedPartition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A partition. first: index of its first IPU in the fleet; until: end of a passing state, in seconds of the fleet's
    clock; message: why it is in ERROR."""

    name: str
    size: int
    gcds: int
    first: int
    state: SimulatedState
    until: float = 0.0
    message: str = ""

    @property
    def ipus(self) -> range:
        return range(self.first, self.first + self.size)


class InjectedFaults(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """Injected faults.

    ipus: IPUs that do not train; links: by the IPU-Machine before them (to the next one of its rack). V-IPU detects
    both when it trains a partition over them, and when an ACTIVE partition breaks. down: no request is answered; slow:
    seconds before each answer; lose_answers: number of changes that are made but not answered; stuck: partitions whose
    passing state never ends
    """

    ipus: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    down: bool = False
    slow: float = 0.0
    lose_answers: int = 0
    stuck: tuple[str, ...] = ()


class SimulatedFleet(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """ipus: their number; first_rack: part of the IPU-Machines' addresses; delay_s: duration of each passing state."""

    ipus: int
    first_rack: int = 1
    delay_s: float = 1.0
    partitions: tuple[SimulatedPartition, ...] = ()
    faults: InjectedFaults = InjectedFaults()

    def __post_init__(self) -> None:
        """Raises ValueError, also for a manipulated file."""
        if not IPUS_OF_MACHINE <= self.ipus <= IPUS_LIMIT or self.ipus % IPUS_OF_MACHINE:
            raise ValueError(
                f"ipus: {self.ipus}: expected a multiple of {IPUS_OF_MACHINE}, "
                f"from {IPUS_OF_MACHINE} to {IPUS_LIMIT} (an IPU-Machine has {IPUS_OF_MACHINE})"
            )
        if not 0 <= self.first_rack <= 255 - IPUS_LIMIT // (IPUS_OF_MACHINE * MACHINES_OF_RACK):
            raise ValueError(f"first rack: {self.first_rack}: expected 0 to 55")
        if not 0 <= self.delay_s <= 3600:
            raise ValueError(f"delay: {self.delay_s}: expected 0 to 3600 seconds")
        taken: set[int] = set()
        for held in self.partitions:
            if not _is_power_of_two(held.size) or held.first % held.size or held.first + held.size > self.ipus:
                raise ValueError(
                    f"partition {held.name}: {held.size} IPUs from {held.first}: not an aligned block of the fleet"
                )
            if not taken.isdisjoint(held.ipus):
                raise ValueError(f"partition {held.name}: overlaps another one")
            taken.update(held.ipus)

    def find_partition(self, name: str) -> SimulatedPartition | None:
        return next((held for held in self.partitions if held.name == name), None)


def create_partition(fleet: SimulatedFleet, now: float, name: str, size: int, gcds: int) -> SimulatedFleet:
    """Begin to create a partition on the first free block. Raises InvalidCommand, NameTaken, NoFreeBlock."""
    fleet = advance(fleet, now)
    check_name(name, "name")
    _check_size(size)
    if gcds < 1 or size % gcds:
        raise InvalidCommand(f"gcds: {shorten_repr(gcds)}: expected a divisor of the size {size}")
    if fleet.find_partition(name) is not None:
        raise NameTaken(f"partition {name} exists")
    first = next(_iterate_free_blocks(fleet, size), None)
    if first is None:
        raise NoFreeBlock(f"no {size} adjacent free IPUs; free: {count_free_ipus(fleet, now)} of {fleet.ipus}")
    held = SimulatedPartition(name=name, size=size, gcds=gcds, first=first, state="CREATING", until=now + fleet.delay_s)
    return advance(_replace_partition(fleet, held), now)


def reset_partition(fleet: SimulatedFleet, now: float, name: str) -> SimulatedFleet:
    """Begin to reset a partition that is ACTIVE, or to repair one in ERROR. Raises UnknownPartition, PartitionBusy."""
    fleet = advance(fleet, now)
    held = fleet.find_partition(name)
    if held is None:
        raise UnknownPartition(f"no partition {shorten_repr(name)}")
    if held.state in PASSING:
        raise PartitionBusy(f"partition {name} is {held.state}: expected ACTIVE or ERROR")
    begun = msgspec.structs.replace(held, state="RESETTING", until=now + fleet.delay_s, message="")
    return advance(_replace_partition(fleet, begun), now)


def remove_partition(fleet: SimulatedFleet, now: float, name: str) -> SimulatedFleet:
    """Begin to remove it, whatever its state; no change if it is missing or being removed."""
    fleet = advance(fleet, now)
    held = fleet.find_partition(name)
    if held is None or held.state == "REMOVING":
        return fleet
    begun = msgspec.structs.replace(held, state="REMOVING", until=now + fleet.delay_s, message="")
    return advance(_replace_partition(fleet, begun), now)


def forget_partition(fleet: SimulatedFleet, now: float, name: str) -> SimulatedFleet:
    """The controller forgets the partition without a request. Raises UnknownPartition."""
    fleet = advance(fleet, now)
    if fleet.find_partition(name) is None:
        raise UnknownPartition(f"no partition {shorten_repr(name)}")
    left = tuple(held for held in fleet.partitions if held.name != name)
    return msgspec.structs.replace(fleet, partitions=left)


def inject_faults(fleet: SimulatedFleet, now: float, faults: InjectedFaults) -> SimulatedFleet:
    """Replace the faults."""
    return advance(msgspec.structs.replace(advance(fleet, now), faults=faults), now)


def advance(fleet: SimulatedFleet, now: float) -> SimulatedFleet:
    """Apply everything that has ended by now; returns the same fleet if nothing has."""
    kept = tuple(moved for held in fleet.partitions if (moved := _advance_partition(fleet, held, now)) is not None)
    unchanged = len(kept) == len(fleet.partitions) and all(map(_same, kept, fleet.partitions))
    return fleet if unchanged else msgspec.structs.replace(fleet, partitions=kept)


def find_due_time(fleet: SimulatedFleet) -> float:
    """When the next operation ends; infinity if none is in progress."""
    return min(
        (held.until for held in fleet.partitions if held.state in PASSING and held.name not in fleet.faults.stuck),
        default=math.inf,
    )


def restart(fleet: SimulatedFleet, now: float) -> SimulatedFleet:
    """A fleet read from disk at ``now``: the clock may be of another boot, so no operation lasts longer than delay_s
    from now."""
    latest = now + fleet.delay_s
    kept = tuple(msgspec.structs.replace(held, until=min(held.until, latest)) for held in fleet.partitions)
    return advance(msgspec.structs.replace(fleet, partitions=kept), now)


def count_free_ipus(fleet: SimulatedFleet, now: float) -> int:
    return fleet.ipus - sum(held.size for held in advance(fleet, now).partitions)


def count_free_blocks(fleet: SimulatedFleet, now: float, size: int) -> int:
    """Number of partitions of that size that can be created now. Raises InvalidCommand."""
    _check_size(size)
    return sum(1 for _ in _iterate_free_blocks(advance(fleet, now), size))


def locate_ipu(fleet: SimulatedFleet, number: int) -> Ipu:
    """The address of an IPU: 10.1.RACK.MACHINE, both counted from one; Muster's own scheme, in the style of gc-info."""
    machine, index = divmod(number, IPUS_OF_MACHINE)
    return Ipu(machine_address(fleet, machine), index)


def machine_address(fleet: SimulatedFleet, machine: int) -> str:
    rack, place = divmod(machine, MACHINES_OF_RACK)
    return f"10.1.{fleet.first_rack + rack}.{place + 1}"


def number_machines(fleet: SimulatedFleet) -> range:
    return range(fleet.ipus // IPUS_OF_MACHINE)


def has_link(fleet: SimulatedFleet, machine: int) -> bool:
    """Whether a link leads from this IPU-Machine to the next; machines are chained within a rack."""
    return machine + 1 < len(number_machines(fleet)) and (machine + 1) % MACHINES_OF_RACK != 0


def check_name(name: str, where: str) -> None:
    """Raises InvalidCommand."""
    if not _NAME.fullmatch(name):
        raise InvalidCommand(
            f"{where}: {shorten_repr(name)}: expected letters, digits, '-', '.' and '_', "
            "beginning and ending with a letter or digit, at most 253 characters"
        )


def shorten_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _check_size(size: int) -> None:
    if not _is_power_of_two(size) or size > SIZE_LIMIT:
        raise InvalidCommand(f"size: {shorten_repr(size)}: expected a power of two, at most {SIZE_LIMIT}")


def _is_power_of_two(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def _same(one: SimulatedPartition, other: SimulatedPartition) -> bool:
    return one is other


def _replace_partition(fleet: SimulatedFleet, changed: SimulatedPartition) -> SimulatedFleet:
    others = [held for held in fleet.partitions if held.name != changed.name]
    return msgspec.structs.replace(fleet, partitions=tuple(sorted([*others, changed], key=lambda held: held.first)))


def _iterate_free_blocks(fleet: SimulatedFleet, size: int) -> Iterator[int]:
    taken = {number // size for held in fleet.partitions for number in held.ipus[:: min(size, held.size)]}
    return (block * size for block in range(fleet.ipus // size) if block not in taken)


def _advance_partition(fleet: SimulatedFleet, held: SimulatedPartition, now: float) -> SimulatedPartition | None:
    if held.state in PASSING and held.name in fleet.faults.stuck:
        return held
    if held.state == "REMOVING":
        return held if now < held.until else None
    if held.state in PASSING and now < held.until:
        return held
    if held.state == "ERROR":
        return held
    complaint = _find_complaint(fleet, held)
    if complaint:
        return msgspec.structs.replace(held, state="ERROR", until=0.0, message=complaint)
    return held if held.state == "ACTIVE" else msgspec.structs.replace(held, state="ACTIVE", until=0.0)


def _find_complaint(fleet: SimulatedFleet, held: SimulatedPartition) -> str:
    bad = [number for number in fleet.faults.ipus if number in held.ipus]
    if bad:
        ipu = locate_ipu(fleet, bad[0])
        return f"IPU {ipu.index} of {ipu.machine} does not train"
    for machine in fleet.faults.links:
        ends = (machine * IPUS_OF_MACHINE, (machine + 1) * IPUS_OF_MACHINE)
        if all(number in held.ipus for number in ends):
            return f"the link {machine_address(fleet, machine)}-{machine_address(fleet, machine + 1)} does not train"
    return ""

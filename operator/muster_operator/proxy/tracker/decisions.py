"""What is answered to a wish, and what comes next for an entry by what V-IPU says. Pure.

The state of an entry says what is meant; each step leads from what V-IPU has to that, and may be taken twice.
"""

import re
from collections.abc import Collection
from enum import Enum

import msgspec

from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.proxy.free_capacity import is_power_of_two, sizes
from muster_operator.proxy.tracker.entries import ASIDE
from muster_operator.vipu.controller import Ipu, VipuPartition

GCDS_LIMIT = 1024
# a key of a ConfigMap, with room for what may stand beside it: one that is none would hold up every other's write
_NAME = re.compile(r"p-[-._A-Za-z0-9]{0,237}[A-Za-z0-9]", re.ASCII)


class Step(Enum):
    """WAIT: V-IPU is at it. REMAKE: V-IPU lost what was active. PARK: it lies on quarantined IPUs. RELEASE: a parked
    one lies on none any more; SHRINK: it lies on others, too."""

    CREATE = "create"
    RESET = "reset"
    REMOVE = "remove"
    WAIT = "wait"
    PARK = "park"
    ACTIVATE = "activate"
    REMAKE = "remake"
    RELEASE = "release"
    SHRINK = "shrink"
    DROP = "drop"
    DONE = "done"


def invalid(name: str, wish: PartitionRequest, max_ipus: int) -> PartitionRefusal | None:
    """What is wrong with a wish in itself."""
    if not _NAME.fullmatch(name) or name.endswith(ASIDE) or is_parked(name):
        return _bad(f"partition {name[:80]!r}: expected a name of a job's partition, p-…")
    if not is_power_of_two(wish.size) or wish.size > max_ipus:
        return _bad(f"size: {wish.size}: expected one of {sizes(max_ipus)}")
    if not 1 <= wish.gcds <= GCDS_LIMIT or wish.size % wish.gcds:
        return _bad(f"gcds: {wish.gcds}: expected a number that divides the {wish.size} IPUs")
    if wish.attempt < 0 or wish.instance < 0:
        return _bad(f"instance, attempt: {wish.instance}, {wish.attempt}: expected 0 or more")
    for field in ("job", "namespace", "name"):
        text = getattr(wish, field)
        if not 0 < len(text) <= 253 or not text.isprintable():
            return _bad(f"{field}: {text[:40]!r}: expected 1 to 253 characters")
    return None


def answer(name: str, wish: PartitionRequest, entry: PartitionEntry | None) -> PartitionEntry | PartitionRefusal | None:
    """None: there is none yet, so it is to be begun. An Entry that is ``entry`` itself: nothing changes. Another one:
    it is to be written first."""
    if entry is None:
        return None
    if entry.job != wish.job:
        whose = f"{entry.namespace}/{entry.name}" if entry.namespace else entry.job
        return PartitionRefusal(
            why="NotOurs", message=f"partition {name} belongs to another job, {whose} (uid {entry.job})"
        )
    if wish.attempt < entry.attempt:
        told = f"partition {name}: attempt {wish.attempt} is over: it is at attempt {entry.attempt}"
        return PartitionRefusal(why="OldAttempt", message=told)
    if entry.state == "deleting":
        return PartitionRefusal(
            why="Refused", message=f"partition {name} is being removed: {entry.message or 'not gone yet'}"
        )
    if wish.attempt == entry.attempt:
        if (wish.size, wish.gcds) != (entry.size, entry.gcds):
            has = f"{entry.size} IPUs in {entry.gcds} GCDs"
            return _bad(f"partition {name}: attempt {wish.attempt} has {has}, asked for {wish.size} in {wish.gcds}")
        return entry
    return msgspec.structs.replace(
        entry, attempt=wish.attempt, size=wish.size, gcds=wish.gcds, state="creating", reset=True, message=""
    )


def begun(wish: PartitionRequest, controller: str, selector: str) -> PartitionEntry:
    return PartitionEntry(
        job=wish.job,
        namespace=wish.namespace,
        name=wish.name,
        instance=wish.instance,
        attempt=wish.attempt,
        size=wish.size,
        gcds=wish.gcds,
        controller=controller,
        selector=selector,
    )


def freed(name: str, job: str, entry: PartitionEntry | None) -> PartitionEntry | PartitionRefusal | None:
    """What is to be written when ``job`` lets go of it; None: it is gone; ``entry`` itself: nothing changes."""
    if entry is None:
        return None
    if entry.job != job:
        return PartitionRefusal(why="NotOurs", message=f"partition {name} belongs to another job (uid {entry.job})")
    return entry if entry.state == "deleting" else deleting(entry)


def deleting(entry: PartitionEntry, message: str = "") -> PartitionEntry:
    return msgspec.structs.replace(entry, state="deleting", reset=False, message=message)


def next_step(
    name: str, entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu], *, is_fresh: bool
) -> Step:
    """found: what the entry's controller has under this name, None: nothing, for sure.

    is_fresh: what is there was begun or reset for this attempt, as far as this process knows
    """
    if entry.state == "deleting":
        if found is None or not entry.controller:  # without a controller there can be none
            return Step.DROP
        return Step.WAIT if found.state == "REMOVING" else Step.REMOVE
    if is_parked(name):
        return _parked(entry, found, quarantined)
    if entry.state == "active":
        return Step.DONE if found is not None else Step.REMAKE
    return _creating(entry, found, quarantined, is_fresh=is_fresh)


def _creating(
    entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu], *, is_fresh: bool
) -> Step:
    if found is None:
        return Step.CREATE
    if found.state == "REMOVING":
        return Step.WAIT
    if found.state == "ERROR" or (found.size, found.gcds) != (entry.size, entry.gcds):
        return Step.REMOVE
    if not set(found.ipus).isdisjoint(quarantined):
        return Step.PARK
    if found.state != "ACTIVE":
        return Step.WAIT
    return Step.RESET if entry.reset and not is_fresh else Step.ACTIVATE


def _parked(entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu]) -> Step:
    """A parked one is made by who needs it; one that was only meant when that process died is not made any more."""
    if found is None:
        return Step.DROP
    if set(found.ipus).isdisjoint(quarantined) and found.ipus:
        return Step.RELEASE
    if entry.state != "active":
        return Step.ACTIVATE
    return Step.SHRINK if not set(found.ipus) <= set(quarantined) else Step.DONE


def _bad(message: str) -> PartitionRefusal:
    return PartitionRefusal(why="Invalid", message=message)

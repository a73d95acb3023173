"""Decides how to answer a request, and the next action for an entry from what V-IPU reports. Pure.

The state of an entry is the desired state. Each action leads from V-IPU's state towards it and may be repeated.
"""

import re
from collections.abc import Collection
from enum import Enum

import msgspec

from muster_operator.job.names import POD_PREFIX, is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.proxy.partition_limits import is_power_of_two, list_sizes
from muster_operator.proxy.tracker.entries import ASIDE_SUFFIX
from muster_operator.vipu.controller import Ipu, VipuPartition

GCDS_LIMIT = 1024
_TEXT_LIMIT = 253 + len(POD_PREFIX)  # characters: names of Kubernetes have at most 253
# a key of the ConfigMap, with room for a suffix: an invalid key would make every write fail
_NAME = re.compile(r"p-[-._A-Za-z0-9]{0,237}[A-Za-z0-9]", re.ASCII)


class PartitionAction(Enum):
    """WAIT: V-IPU is working on it. REMAKE: V-IPU lost an active partition. PARK: it lies on quarantined IPUs. RELEASE:
    a parked partition has no quarantined IPU left; SHRINK: it also holds other IPUs."""

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


def validate_request(name: str, wish: PartitionRequest, max_ipus: int) -> PartitionRefusal | None:
    """The error of a request itself; None if it is valid."""
    if not _NAME.fullmatch(name) or name.endswith(ASIDE_SUFFIX) or is_parked(name):
        return _refuse_invalid(f"partition {name[:80]!r}: expected the name of a job's partition, p-…")
    if not is_power_of_two(wish.size) or wish.size > max_ipus:
        return _refuse_invalid(f"size: {wish.size}: expected one of {list_sizes(max_ipus)}")
    if not 1 <= wish.gcds <= GCDS_LIMIT or wish.size % wish.gcds:
        return _refuse_invalid(f"gcds: {wish.gcds}: expected a divisor of the {wish.size} IPUs")
    if wish.attempt < 0 or wish.instance < 0:
        return _refuse_invalid(f"instance, attempt: {wish.instance}, {wish.attempt}: expected 0 or more")
    for field in ("job", "namespace", "name"):
        text = getattr(wish, field)
        if not 0 < len(text) <= _TEXT_LIMIT or not text.isprintable():
            return _refuse_invalid(f"{field}: {text[:40]!r}: expected 1 to {_TEXT_LIMIT} characters")
    return None


def answer_request(
    name: str, wish: PartitionRequest, entry: PartitionEntry | None
) -> PartitionEntry | PartitionRefusal | None:
    """None: no entry exists, so create one. ``entry`` itself: nothing changes. Another entry: write it first."""
    if entry is None:
        return None
    if entry.job != wish.job:
        owner = f"{entry.namespace}/{entry.name}" if entry.namespace else entry.job
        return PartitionRefusal(
            why="NotOurs", message=f"partition {name} belongs to another job, {owner} (uid {entry.job})"
        )
    if wish.attempt < entry.attempt:
        message = f"partition {name}: attempt {wish.attempt} is outdated: it is at attempt {entry.attempt}"
        return PartitionRefusal(why="OldAttempt", message=message)
    if entry.state == "deleting":
        return PartitionRefusal(
            why="Refused", message=f"partition {name} is being removed: {entry.message or 'not gone yet'}"
        )
    if wish.attempt == entry.attempt:
        if (wish.size, wish.gcds) != (entry.size, entry.gcds):
            has = f"{entry.size} IPUs in {entry.gcds} GCDs"
            return _refuse_invalid(
                f"partition {name}: attempt {wish.attempt} has {has}, requested {wish.size} in {wish.gcds}"
            )
        return entry
    return msgspec.structs.replace(
        entry, attempt=wish.attempt, size=wish.size, gcds=wish.gcds, state="creating", reset=True, message=""
    )


def create_entry(wish: PartitionRequest, controller: str, selector: str) -> PartitionEntry:
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


def release_entry(name: str, job: str, entry: PartitionEntry | None) -> PartitionEntry | PartitionRefusal | None:
    """The entry to write when ``job`` releases it; None: it is gone; ``entry`` itself: nothing changes."""
    if entry is None:
        return None
    if entry.job != job:
        return PartitionRefusal(why="NotOurs", message=f"partition {name} belongs to another job (uid {entry.job})")
    return entry if entry.state == "deleting" else mark_deleting(entry)


def mark_deleting(entry: PartitionEntry, message: str = "") -> PartitionEntry:
    return msgspec.structs.replace(entry, state="deleting", reset=False, message=message)


def decide_action(
    name: str, entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu], *, is_fresh: bool
) -> PartitionAction:
    """found: what the entry's controller has under this name; None: certainly nothing.

    is_fresh: this process knows that it was created or reset for this attempt
    """
    if entry.state == "deleting":
        if found is None or not entry.controller:  # without a controller no partition can exist
            return PartitionAction.DROP
        return PartitionAction.WAIT if found.state == "REMOVING" else PartitionAction.REMOVE
    if is_parked(name):
        return _decide_parked(entry, found, quarantined)
    if entry.state == "active":
        return PartitionAction.DONE if found is not None else PartitionAction.REMAKE
    return _decide_creating(entry, found, quarantined, is_fresh=is_fresh)


def describe_sickness(entry: PartitionEntry, found: VipuPartition | None, *, is_fresh: bool) -> str:
    """Why a partition that was created for this attempt is unusable; empty if it is usable or is to be
    removed anyway."""
    if found is None or entry.state == "deleting":
        return ""
    if found.state == "ERROR":
        return found.message
    if is_fresh and not entry.reset:
        made, requested = f"{found.size} IPUs in {found.gcds} GCDs", f"{entry.size} in {entry.gcds}"
        return f"it created {made}, requested {requested}"
    return ""


def _decide_creating(
    entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu], *, is_fresh: bool
) -> PartitionAction:
    if found is None:
        return PartitionAction.CREATE
    if found.state == "REMOVING":
        return PartitionAction.WAIT
    if found.state == "ERROR" or (found.size, found.gcds) != (entry.size, entry.gcds):
        return PartitionAction.REMOVE
    if not set(found.ipus).isdisjoint(quarantined):
        return PartitionAction.PARK
    if found.state != "ACTIVE":
        return PartitionAction.WAIT
    return PartitionAction.RESET if entry.reset and not is_fresh else PartitionAction.ACTIVATE


def _decide_parked(entry: PartitionEntry, found: VipuPartition | None, quarantined: Collection[Ipu]) -> PartitionAction:
    """Parked partitions are created when needed; one that was only intended before a crash is not created any more."""
    if found is None:
        return PartitionAction.DROP
    if set(found.ipus).isdisjoint(quarantined) and found.ipus:
        return PartitionAction.RELEASE
    if entry.state != "active":
        return PartitionAction.ACTIVATE
    return PartitionAction.SHRINK if not set(found.ipus) <= set(quarantined) else PartitionAction.DONE


def _refuse_invalid(message: str) -> PartitionRefusal:
    return PartitionRefusal(why="Invalid", message=message)

"""Partitions as the tracker ConfigMap keeps them: one key for each, its value one line of JSON. Pure.

A ConfigMap ends at 1 MiB, and the API server keeps each key once more as managed field: some 2,300 partitions fit.
What a person made unreadable stays where it is under its key and is told; nothing is written to that key until it can
be read again, or, where this process still knows what it said, that is put back and the person's text kept beside it
under ``NAME.unreadable``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry

TRACKER_LIMIT = 1000 << 10  # bytes of what counts below; etcd takes objects of 1.5 MB, a ConfigMap's values 1 MiB
MESSAGE_LIMIT = 256  # characters
ASIDE_SUFFIX = ".unreadable"
PARKED_JOB = "muster-parked"  # the "job" of what keeps quarantined IPUs out of the way: no uid looks like that
_RESERVED = MESSAGE_LIMIT // 2  # an entry may grow by its message: room is kept for half of them


@dataclass(frozen=True)
class TrackedEntries:
    """entries: by name; unreadable: by name, what is wrong with the value; aside: keys that keep persons' texts."""

    entries: Mapping[str, PartitionEntry] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()


def parse_entries(
    data: Mapping[str, str], last: tuple[Mapping[str, str], TrackedEntries] | None = None
) -> TrackedEntries:
    """Of a ConfigMap's ``data``. last: what was read before, of what data: what is the same is not read again."""
    old, known = last if last is not None else ({}, TrackedEntries())
    entries: dict[str, PartitionEntry] = {}
    unreadable: dict[str, str] = {}
    aside = {key for key in data if key.endswith(ASIDE_SUFFIX)}
    for name, text in data.items():
        if name in aside:
            continue
        if name in known.entries and old.get(name) == text:
            entries[name] = known.entries[name]
            continue
        try:
            entry = msgspec.json.decode(text, type=PartitionEntry)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            unreadable[name] = f"expected one line of JSON, an entry of this table: {error}"
            continue
        problem = _find_problem(entry)
        if problem:
            unreadable[name] = problem
        else:
            entries[name] = entry
    return TrackedEntries(entries, unreadable, frozenset(aside))


def format_entry(entry: PartitionEntry) -> str:
    if len(entry.message) > MESSAGE_LIMIT:
        entry = msgspec.structs.replace(entry, message=f"{entry.message[: MESSAGE_LIMIT - 1]}…")
    # these two for whoever reads it with kubectl, whatever they are
    shown = msgspec.to_builtins(entry) | {"state": entry.state, "attempt": entry.attempt}
    return msgspec.json.encode(shown).decode()


def measure_size(data: Mapping[str, str]) -> int:
    """Bytes of LIMIT that are taken now."""
    return sum(_bytes(name, text) for name, text in data.items())


def measure_cost(name: str, text: str) -> int:
    """Bytes of LIMIT that an entry takes."""
    return _bytes(name, text) + _RESERVED


def sum_costs(data: Mapping[str, str]) -> int:
    return sum(measure_cost(name, text) for name, text in data.items())


def count_used_ipus(entries: Mapping[str, PartitionEntry]) -> dict[str, int]:
    """IPUs that jobs hold, by namespace; parked ones are nobody's."""
    sums: dict[str, int] = {}
    for name, entry in entries.items():
        if not is_parked(name):
            sums[entry.namespace] = sums.get(entry.namespace, 0) + entry.size
    return dict(sorted(sums.items()))


def list_parked(entries: Mapping[str, PartitionEntry]) -> Iterable[str]:
    return sorted(name for name in entries if is_parked(name))


def _bytes(name: str, text: str) -> int:
    return 2 * len(name) + len(text.encode("utf-8", "replace")) + 16


def _find_problem(entry: PartitionEntry) -> str:
    if not entry.job:
        return "job: '': expected the job's uid"
    if entry.size < 1 or entry.size & (entry.size - 1):
        return f"size: {entry.size}: expected a power of two"
    if entry.gcds < 1:
        return f"gcds: {entry.gcds}: expected 1 or more"
    if entry.attempt < 0 or entry.instance < 0:
        return f"instance, attempt: {entry.instance}, {entry.attempt}: expected 0 or more"
    return ""

"""Partitions in the tracker ConfigMap: one key each, with one line of JSON as value. Pure.

A ConfigMap is limited to 1 MiB, and the API server stores each key again as a managed field: about 2,300 partitions
fit. A value that a person made unreadable stays under its key and is reported. Nothing is written to that key until it
can be decoded again, unless this process still knows its former value: then it restores that, and keeps the person's
text under ``NAME.unreadable``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry

# bytes, as counted below; etcd stores objects of 1.5 MB, and a ConfigMap's values are limited to 1 MiB
TRACKER_LIMIT = 1000 << 10
MESSAGE_LIMIT = 256  # characters
ASIDE_SUFFIX = ".unreadable"
PARKED_JOB = "muster-parked"  # the "job" of parked partitions: no uid looks like this
_RESERVED = MESSAGE_LIMIT // 2  # messages may grow: half of their maximum is reserved


@dataclass(frozen=True)
class TrackedEntries:
    """entries: by name; unreadable: by name, the error of the value; aside: keys that keep texts of persons."""

    entries: Mapping[str, PartitionEntry] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()


def parse_entries(
    data: Mapping[str, str], last: tuple[Mapping[str, str], TrackedEntries] | None = None
) -> TrackedEntries:
    """Decode a ConfigMap's ``data``. last: the previous data and its result, so that unchanged values are not decoded
    again."""
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
            unreadable[name] = f"expected a tracker entry as one line of JSON: {error}"
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
    # always included, for people who read the entry with kubectl
    shown = msgspec.to_builtins(entry) | {"state": entry.state, "attempt": entry.attempt}
    return msgspec.json.encode(shown).decode()


def measure_size(data: Mapping[str, str]) -> int:
    """Bytes of TRACKER_LIMIT in use."""
    return sum(_bytes(name, text) for name, text in data.items())


def measure_cost(name: str, text: str) -> int:
    """Bytes of TRACKER_LIMIT that an entry needs."""
    return _bytes(name, text) + _RESERVED


def sum_costs(data: Mapping[str, str]) -> int:
    return sum(measure_cost(name, text) for name, text in data.items())


def count_used_ipus(entries: Mapping[str, PartitionEntry]) -> dict[str, int]:
    """IPUs in partitions of jobs, by namespace; parked partitions do not count."""
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
        return f"gcds: {entry.gcds}: expected at least 1"
    if entry.attempt < 0 or entry.instance < 0:
        return f"instance, attempt: {entry.instance}, {entry.attempt}: expected 0 or more"
    return ""

"""One write of the tracker: applies decisions about entries as changes of the ConfigMap's keys. Pure.

An existing entry must always fit into the ConfigMap. If there is no room, its message is dropped, and new entries are
refused.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from muster_kube.api.times import rfc3339_whole
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.proxy.tracker.entries import (
    ASIDE_SUFFIX,
    TRACKER_LIMIT,
    format_entry,
    measure_cost,
    measure_size,
    parse_entries,
    sum_costs,
)

EntryDecision: TypeAlias = Callable[[PartitionEntry | None], PartitionEntry | None]
"""Maps the existing entry to the desired one; called again if the existing entry has changed."""


class TrackerFull(Exception):
    """There is no room for another entry; nothing was written."""


class EntryUnreadable(Exception):
    """A person made this entry unreadable; the message contains the error."""


class TrackerPatch:
    """data: content of the ConfigMap after this write; changes: keys and values of the PATCH, None: removed."""

    def __init__(self, data: Mapping[str, str], tracker: str) -> None:
        self.data = dict(data)
        self.changes: dict[str, str | None] = {}
        self._tracker = tracker
        self._cost = sum_costs(self.data)

    def apply(
        self, name: str, decide: EntryDecision, lost: PartitionEntry | None, now_s: float
    ) -> PartitionEntry | Exception | None:
        """The new entry; an exception (raised by ``decide``, TrackerFull or EntryUnreadable) if nothing changes.

        lost: the entry before its key vanished; now_s: Unix time.
        """
        there = parse_entries({name: self.data[name]} if name in self.data else {})
        written = there.entries.get(name)
        known = written or lost
        if name in there.unreadable and known is None:
            return EntryUnreadable(f"cannot decode tracker entry {name}: {there.unreadable[name]}")
        try:
            entry = decide(known)
        except Exception as error:  # the answer of ``decide`` to its caller
            return error
        if entry is None:
            self._remove(name)
            return None
        if entry == written:
            return entry
        if known is None or known.state != entry.state:
            entry = msgspec.structs.replace(entry, since=rfc3339_whole(now_s))
        return self._put(name, entry, is_unreadable=name in there.unreadable)

    def _remove(self, name: str) -> None:
        if name in self.data:
            del self.data[name]
            self.changes[name] = None

    def _put(self, name: str, entry: PartitionEntry, *, is_unreadable: bool) -> PartitionEntry | TrackerFull:
        text = format_entry(entry)
        before = self.data.get(name)
        if before is not None and measure_size(self.data) + len(text.encode()) - len(before.encode()) > TRACKER_LIMIT:
            # an entry must always fit; its message need not
            entry = msgspec.structs.replace(entry, message="")
            text = format_entry(entry)
            if text == before:
                return entry
        if before is None:
            cost = self._cost + measure_cost(name, text)
            if cost > TRACKER_LIMIT:
                return TrackerFull(
                    f"tracker {self._tracker} is full: {len(self.data)} partitions; a ConfigMap is limited to 1 MiB"
                )
            self._cost = cost
        if is_unreadable:
            self.data[name + ASIDE_SUFFIX] = self.changes[name + ASIDE_SUFFIX] = self.data[name]
        self.data[name] = self.changes[name] = text
        return entry

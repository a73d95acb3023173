"""The outages of a node, from its record. Pure.

The record is an annotation of the Node: its kubelet may write anything there, and a record that is too large loses the
times of its closed faults. So every time is limited to what the ledger knows.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from muster_tainter.goodput.observed_node import ObservedNode, Outage


def outages_after(observed: ObservedNode, after: float, earliest: float, now: float) -> list[Outage]:
    """Those that ended after ``after``, and the one that goes on, until infinity: oldest first, and apart.

    earliest: when an outage can have begun, at most ``after``. A closed fault without a beginning is left out; an open
    one begins now. In seconds since the epoch.
    """
    found = [
        Outage(_limited(each.since, earliest, until), until, each.reason)
        for each in observed.ended
        if each.since and (until := min(each.until, now)) > after
    ]
    if observed.outage is not None:
        since = _limited(observed.outage.since or now, earliest, now)
        found.append(Outage(since, math.inf, observed.outage.reason))
    return list(_merged(found))


def _limited(at: float, earliest: float, latest: float) -> float:
    return min(max(at, earliest), latest)


def _merged(outages: Iterable[Outage]) -> Iterable[Outage]:
    """Faults that overlap or touch are one outage, with the reason of the first."""
    present: Outage | None = None
    for each in sorted(outages, key=lambda each: each.since):
        if present is not None and each.since <= present.until:
            present = replace(present, until=max(present.until, each.until))
            continue
        if present is not None:
            yield present
        present = each
    if present is not None:
        yield present

"""The ends of one gang's pods that show a cause, for their peers. Pure.

A tenant chooses the gang of its pods, and may put all of them into one. So the ends are kept by cause and in the order
of time, and nothing here looks through all of them.
"""

from bisect import bisect_left, bisect_right, insort_right
from typing import NamedTuple

from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.pods.attribution import PEERS_S, STRONGEST_FIRST


class _ShownEnd(NamedTuple):
    at: float
    uid: str


class GangEnds:
    """Times are in seconds since the epoch."""

    def __init__(self) -> None:
        self._ends: dict[Cause, list[_ShownEnd]] = {}

    def add(self, at: float, uid: str, cause: Cause) -> None:
        """The end of a pod shows ``cause``. A stronger cause of the same end may follow."""
        insort_right(self._ends.setdefault(cause, []), _ShownEnd(at, uid), key=_at)

    def strongest(self, at: float, uid: str) -> Cause | None:
        """The strongest cause that another pod's end shows, at most PEERS_S before or after ``at``; None: there is
        none."""
        return next((cause for cause in STRONGEST_FIRST if self._has_peer(cause, at, uid)), None)

    def forget(self, until: float) -> None:
        for ends in self._ends.values():
            del ends[: bisect_right(ends, until, key=_at)]

    def _has_peer(self, cause: Cause, at: float, uid: str) -> bool:
        ends = self._ends.get(cause, [])
        for number in range(bisect_left(ends, at - PEERS_S, key=_at), len(ends)):
            if ends[number].at > at + PEERS_S:
                break
            if ends[number].uid != uid:  # a pod that restarts in place has several ends, at most one a second
                return True
        return False


def _at(end: _ShownEnd) -> float:
    return end.at

"""Which pods were counted: all that is remembered of a pod that has ended.

A cluster keeps 12,500 ended pods by default (kube-controller-manager's --terminated-pod-gc-threshold), but a hundred
thousand that end in a minute are all there for a while, and each list returns them again.
"""

from muster_tainter.outcomes.pods import OutcomePod

COUNTED_LIMIT = 150_000  # about 140 bytes each


class NoStore(dict[str, OutcomePod]):
    """The reflector's store: it keeps nothing."""

    def __setitem__(self, key: str, pod: OutcomePod) -> None:
        pass


class CountedPods:
    """The pods that were counted, the newest ``limit`` of them.

    horizon: seconds since the epoch; a pod that ended by then may have been counted and forgotten, so it does not count
    """

    def __init__(self, limit: int = COUNTED_LIMIT) -> None:
        self.horizon = 0.0
        self._limit = limit
        self._ends: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, uid: str) -> bool:
        return hash(uid) in self._ends

    def add(self, uid: str, at: float) -> bool:
        """Whether the pod counts: it does once. at: when it ended."""
        key = hash(uid)
        if key in self._ends or at <= self.horizon:
            return False
        self._ends[key] = at
        if len(self._ends) > self._limit:
            oldest = next(iter(self._ends))
            self.horizon = max(self.horizon, self._ends.pop(oldest))
        return True

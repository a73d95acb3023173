"""Counts lines in a time window: enough of them for one row and one component make a finding.

Only the newest times are kept, for a bounded number of (row, component) pairs. At the limit, the pair whose last line
is oldest is dropped.
"""

from collections import OrderedDict, deque

WINDOWS_LIMIT = 1024

Dump = list[tuple[str, str, list[float]]]


class Windows:
    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def add(self, row: str, component: str, at: float, *, count: int, window_s: float, lines: int = 1) -> bool:
        """Count ``lines`` at ``at`` (epoch seconds). Returns whether there are ``count`` within ``window_s`` now."""
        key = row, component
        times = self._times.get(key)
        if times is None or times.maxlen != count:
            times = deque(times or (), maxlen=count)
            self._times[key] = times
            if len(self._times) > WINDOWS_LIMIT:
                self._times.popitem(last=False)
        self._times.move_to_end(key)
        if times and at < times[-1] - window_s:
            times.clear()  # after the clock was set back, the old times would never leave the window
        times.extend([at] * min(lines, count))
        return len(times) == count and at - times[0] <= window_s

    def number(self, row: str, component: str, at: float, *, window_s: float) -> int:
        """How many lines were counted within ``window_s`` before ``at``; bounded by the ``count`` given to ``add``."""
        return sum(0 <= at - one <= window_s for one in self._times.get((row, component), ()))

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        """Drop the counts of rows with these reasons (none: any) for ``component`` (``*``: any).

        A row's reason is its name up to the first ``/``.
        """
        for row, counted in list(self._times):
            if component in ("*", counted) and (not reasons or row.partition("/")[0] in reasons):
                del self._times[row, counted]

    def dump(self) -> Dump:
        return [(row, component, list(times)) for (row, component), times in self._times.items()]

    @classmethod
    def load(cls, dumped: Dump, longest: int) -> "Windows":
        """``longest``: the highest count that any row needs."""
        self = cls()
        for row, component, times in dumped[-WINDOWS_LIMIT:]:
            self._times[row, component] = deque(times[-longest:], maxlen=max(1, min(len(times), longest)))
        return self

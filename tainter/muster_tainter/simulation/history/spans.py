"""From readings of a series to the time in which it was there, window by window.

A reading each ``step_s`` says that something was so at that time. What is read again within ``gap_s`` has lasted in
between: an agent that restarts, or a scrape that fails, ends no fault.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Ended = Callable[[K, float, float], None]


class Spans(Generic[K]):
    """ended: called with a key, and the begin and the end of its time, in seconds since the epoch.

    Holds only what was read within the last ``gap_s``.
    """

    def __init__(self, step_s: float, gap_s: float, ended: Ended[K]) -> None:
        self._step_s, self._gap_s = step_s, gap_s
        self._ended = ended
        self._current: dict[K, tuple[float, float]] = {}  # begin, last reading

    def read(self, key: K, times: Iterable[float]) -> None:
        """Readings in the order of time, not before those of earlier calls."""
        span = self._current.get(key)
        for at in times:
            if span is not None and at - span[1] <= self._gap_s:
                span = (span[0], max(at, span[1]))
                continue
            if span is not None:
                self._end(key, span)
            span = (at, at)
        if span is not None:
            self._current[key] = span

    def read_until(self, at: float) -> None:
        """Everything until ``at`` is read: what has not been there for ``gap_s`` has ended."""
        for key in [key for key, span in self._current.items() if at - span[1] > self._gap_s]:
            self._end(key, self._current.pop(key))

    def finish(self, at: float, lasts: Ended[K]) -> None:
        """The last reading was ``at``. lasts: called for what was still there; its end is infinite."""
        current, self._current = self._current, {}
        for key, span in current.items():
            if at - span[1] <= 2 * self._step_s:
                lasts(key, span[0], float("inf"))
            else:
                self._end(key, span)

    def _end(self, key: K, span: tuple[float, float]) -> None:
        self._ended(key, span[0], span[1] + self._step_s)

"""Converts seconds since boot to seconds since the epoch, on one timeline that never jumps.

The kernel stamps its log with local_clock(), which starts at boot and stops during suspend, like CLOCK_MONOTONIC and
unlike CLOCK_BOOTTIME. The wall clock is read once, when the reader starts: setting it later changes neither the times
of new lines nor ``now()``, so it does not distort counting windows and quiet times. NTP does not discipline
local_clock(), which may drift by seconds over months, so no line gets a time in the future.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

SAVED_END_S = (
    2.0  # a saved log ends this long after its last line, so that the judge emits the signs it holds back for a second
)
SAME_CLOCK_S = 60.0  # at a larger difference from the last run, the wall clock was corrected in between


@dataclass(frozen=True)
class KernelClocks:
    """The clocks of this machine; a test passes its own."""

    realtime: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Timeline:
    """``booted``: seconds since the epoch of this boot, as an earlier run in the same boot computed it, or None.

    An earlier value that agrees within :data:`SAME_CLOCK_S` is kept, so that a record has the same time in every run.
    Otherwise the wall clock was corrected in between, and its value is used.
    """

    def __init__(self, clocks: KernelClocks, booted: float | None = None) -> None:
        self._monotonic = clocks.monotonic
        self.booted = clocks.realtime() - clocks.monotonic()
        if booted is not None and abs(booted - self.booted) <= SAME_CLOCK_S:
            self.booted = booted

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.booted + self._monotonic()

    def at(self, uptime_s: float) -> float:
        """Epoch seconds of a moment ``uptime_s`` after boot; never later than now."""
        return self.passed(self.booted + uptime_s)

    def passed(self, at: float) -> float:
        """``at`` (epoch seconds) from a line; never later than now."""
        return min(at, self.now())


class SavedTimeline(Timeline):
    """For a saved log of any machine and boot: its newest line is "now", so it is judged as of its end.

    The time of its boot is unknown: stamps since boot count from the epoch.
    """

    def __init__(self, clocks: KernelClocks) -> None:
        super().__init__(clocks)
        self.booted = 0.0
        self._opened = clocks.realtime()
        self._newest: float | None = None

    def now(self) -> float:
        return self._opened if self._newest is None else self._newest + SAVED_END_S

    def passed(self, at: float) -> float:
        self._newest = at if self._newest is None else max(at, self._newest)
        return at

"""From seconds since boot to seconds since the epoch, on one line of time that never jumps.

The kernel stamps its log by local_clock(), which starts at boot and stands still in suspend, as CLOCK_MONOTONIC does
and CLOCK_BOOTTIME does not. The wall clock is asked once, when the reader starts: setting it later moves neither new
lines nor ``now()``, so windows and quiet times neither stretch nor burst. local_clock() is not disciplined by NTP:
over months it may run off by seconds, so no line is ever placed in the future.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

SAVED_END_S = 2.0  # a saved log ends so long after its last line: what the judge holds back for a second is told
SAME_CLOCK_S = 60.0  # a wall clock further off than this from the last run was set right in between


@dataclass(frozen=True)
class KernelClocks:
    """The clocks of this machine; a test brings its own."""

    realtime: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Timeline:
    """``booted``: seconds since the epoch of this boot, as an earlier run in the same boot took it, or None.

    An earlier value is kept when it agrees within :data:`SAME_CLOCK_S`, so that a record has the same time in every
    run; beyond that the wall clock has been corrected in between and is believed.
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
        """``at`` (epoch seconds) as a line says it; never later than now."""
        return min(at, self.now())


class SavedTimeline(Timeline):
    """For a log that was saved, of whatever machine and boot: its newest line is now, so it is judged as of its end.

    Of its boot nothing is known: stamps since boot count from the epoch.
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

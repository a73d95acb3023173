"""What counters read before: a counter says little by its height, much by how fast it rises.

Most hardware counters start at an unknown height and never fall (a working IPU-Machine showed 2,932,108 corrected link
errors), so checks judge the rise within a window. One History serves all checks of an agent.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise

import msgspec

POINTS_LIMIT = 512  # of one series; the oldest are thinned out first
SERIES_LIMIT = 16_384  # 16 devices with 100 counters each, ten times over
KEPT_S = 7 * 86_400.0


class Rise(msgspec.Struct, frozen=True):
    """By how much a counter rose, and over how many seconds it was watched."""

    amount: float
    over_s: float

    def per(self, seconds: float) -> float:
        """The mean rise in ``seconds``; 0 when it was not watched for any time."""
        return self.amount * seconds / self.over_s if self.over_s > 0 else 0.0


class Series(msgspec.Struct, frozen=True):
    """The readings of one counter, oldest first: (seconds of a steady clock, value)."""

    points: tuple[tuple[float, float], ...]

    def rise(self, window_s: float) -> Rise:
        """The rise within the last ``window_s`` seconds, up to the newest reading.

        A fall is a counter that began anew (driver reload, wrap): what it shows then has come since.
        """
        if not self.points:
            return Rise(0.0, 0.0)
        end = self.points[-1][0]
        inside = [point for point in self.points if point[0] >= end - window_s]
        amount = 0.0
        for (_, before), (_, after) in pairwise(inside):
            amount += after - before if after >= before else after
        return Rise(amount, end - inside[0][0])

    @property
    def latest(self) -> float | None:
        return self.points[-1][1] if self.points else None


class History:
    """The readings of all counters, by check and name. ``clock``: seconds, steady, counting while suspended."""

    def __init__(self, clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> None:
        self.clock = clock
        self._series: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self._noted: dict[str, float] = {}

    def note(self, check: str, values: Mapping[str, float]) -> None:
        """Keep one reading of each counter."""
        now = self.clock()
        self._noted[check] = now
        for name, value in values.items():
            series = self._series.get((check, name))
            if series is None:
                if len(self._series) >= SERIES_LIMIT:
                    self._forget_stale(now)
                if len(self._series) >= SERIES_LIMIT:
                    continue
                series = self._series[check, name] = deque()
            # an unchanged counter needs only the first and the last reading of its plateau
            if len(series) > 1 and series[-1][1] == series[-2][1] == value:
                series.pop()
            series.append((now, value))
            while series and series[0][0] < now - KEPT_S:
                series.popleft()
            if len(series) > POINTS_LIMIT:
                # thinned, not cut off: a window of days keeps its beginning
                thinned = [point for place, point in enumerate(series) if place % 2 == 0 or place == len(series) - 1]
                series.clear()
                series.extend(thinned)

    def noted(self, check: str) -> bool:
        """True once the check has left a reading."""
        return check in self._noted

    def of(self, check: str) -> dict[str, Series]:
        """Every series of the check, by counter name."""
        return {name: Series(tuple(points)) for (owner, name), points in self._series.items() if owner == check}

    def _forget_stale(self, now: float) -> None:
        for key in [key for key, points in self._series.items() if points[-1][0] < now - 86_400.0]:
            del self._series[key]


async def readings(
    history: History,
    check: str,
    read: Callable[[], Awaitable[Mapping[str, float]]],
    first_interval_s: float,
) -> dict[str, Series]:
    """Read counters, keep them, and return all their series.

    The first time there is nothing to compare with, so they are read twice, ``first_interval_s`` apart: a person who
    runs the check once learns whether something rises right now.
    """
    if not history.noted(check):
        history.note(check, await read())
        await asyncio.sleep(first_interval_s)
    history.note(check, await read())
    return history.of(check)

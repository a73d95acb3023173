"""What counters read before: a counter says little by its height, much by how fast it rises.

Most hardware counters start at an unknown height and never fall (a working IPU-Machine showed 2,932,108 corrected link
errors), so checks judge the rise within a window. One History serves all checks of an agent.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter

import msgspec

POINTS_LIMIT = 512  # of one series; the older half is thinned out
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
    """The readings of one counter, oldest first.

    points: (seconds of a steady clock, value)
    risen:  by how much it had risen at each point since the first, falls left out
    """

    points: tuple[tuple[float, float], ...]
    risen: tuple[float, ...]

    def rise(self, window_s: float) -> Rise:
        """The rise within the last ``window_s`` seconds, up to the newest reading.

        A fall is a counter that began anew (driver reload, wrap): what it shows then has come since. Between two
        readings a counter is taken to rise evenly, so of a rise that was found after a long gap only the share that
        falls into the window counts.
        """
        if not self.points:
            return Rise(0.0, 0.0)
        end = self.points[-1][0]
        start = max(end - window_s, self.points[0][0])
        after = bisect_left(self.points, start, key=itemgetter(0))
        base = self.risen[after]
        if after and (later := self.points[after][0]) > start:
            earlier = self.points[after - 1][0]
            base -= (base - self.risen[after - 1]) * (later - start) / (later - earlier)
        return Rise(max(0.0, self.risen[-1] - base), end - start)

    @property
    def latest(self) -> float | None:
        return self.points[-1][1] if self.points else None


class History:
    """The readings of all counters, by check and name. ``clock``: seconds, steady, counting while suspended."""

    def __init__(self, clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> None:
        self.clock = clock
        # (seconds, value, risen): with the sum of all rises kept, a point can be dropped and no rise is lost
        self._series: dict[tuple[str, str], deque[tuple[float, float, float]]] = {}
        self._noted: dict[str, float] = {}

    def note(self, check: str, values: Mapping[str, float]) -> None:
        """Keep one reading of each counter; what is no number at all (nan, inf) is left out."""
        now = self.clock()
        self._noted[check] = now
        for name, value in values.items():
            if not math.isfinite(value):
                continue
            series = self._series.get((check, name))
            if series is None:
                if len(self._series) >= SERIES_LIMIT:
                    self._forget_stale(now)
                if len(self._series) >= SERIES_LIMIT:
                    continue
                series = self._series[check, name] = deque()
            self._keep(series, now, value)

    @staticmethod
    def _keep(series: deque[tuple[float, float, float]], now: float, value: float) -> None:
        risen = 0.0
        if series:
            _, before, risen = series[-1]
            risen += value - before if value >= before else max(value, 0.0)
            # an unchanged counter needs only the first and the last reading of its plateau
            if len(series) > 1 and before == series[-2][1] == value:
                series.pop()
        series.append((now, value, risen))
        while series[0][0] < now - KEPT_S:
            series.popleft()
        if len(series) > POINTS_LIMIT:
            # thinned, not cut off: a window of days keeps its beginning, one of minutes all its readings
            points = list(series)
            series.clear()
            series.extend(points[: POINTS_LIMIT // 2 : 2] + points[POINTS_LIMIT // 2 :])

    def since_noted_s(self, check: str) -> float:
        """Seconds since the check left its last reading; endless before the first."""
        return self.clock() - self._noted[check] if check in self._noted else math.inf

    def noted(self, check: str) -> bool:
        """True once the check has left a reading."""
        return check in self._noted

    def of(self, check: str) -> dict[str, Series]:
        """Every series of the check, by counter name."""
        return {
            name: Series(tuple((at, value) for at, value, _ in points), tuple(risen for _, _, risen in points))
            for (owner, name), points in self._series.items()
            if owner == check
        }

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

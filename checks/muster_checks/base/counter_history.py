"""Earlier readings of counters. What matters is how fast a counter rises, not its absolute value.

Most hardware counters start at an unknown value and never fall (a working IPU-Machine showed 2,932,108 corrected link
errors), so checks judge the rise within a window. One History serves all checks of an agent, and its contents survive
a restart of the agent within the same boot.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter

import msgspec

POINTS_LIMIT = 512  # per series; the older half is thinned out
SERIES_LIMIT = 16_384  # ten times 16 devices with 100 counters each
KEPT_S = 7 * 86_400.0
MEMORY_LIMIT_BYTES = 1_500_000  # 2 MB in the agent's state file, which holds it as base64
POINT_BYTES = 28  # three floats of nine bytes, plus their frame
MEMORY_KEPT_S = 300.0  # a saved state is rebuilt at most this often; a crash loses at most this much of the readings


class Rise(msgspec.Struct, frozen=True):
    """How much a counter rose, and over how many seconds it was watched."""

    amount: float
    over_s: float

    def per(self, seconds: float) -> float:
        """The mean rise per ``seconds``; 0 if the counter was not watched for any time."""
        return self.amount * seconds / self.over_s if self.over_s > 0 else 0.0


class CounterSeries(msgspec.Struct, frozen=True):
    """The readings of one counter, oldest first.

    points: (seconds of a steady clock, value)
    risen:  the total rise from the first point to each point, ignoring falls
    """

    points: tuple[tuple[float, float], ...]
    risen: tuple[float, ...]

    def rise(self, window_s: float) -> Rise:
        """The rise within the last ``window_s`` seconds, up to the newest reading.

        A fall means that the counter was reset (driver reload, wrap): the value after it counts as new. Between two
        readings a counter is assumed to rise evenly, so after a long gap only the share of the rise that falls into
        the window counts.
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


Point = tuple[float, float, float]  # (seconds, value, risen)


class _SavedHistory(msgspec.Struct, frozen=True, array_like=True):
    """The content of :meth:`History.memory`, as msgpack. series: (check, counter's name, points)."""

    boot_id: str
    noted: dict[str, float]
    series: tuple[tuple[str, str, tuple[Point, ...]], ...]


class History:
    """The readings of all counters, by check and name. ``clock``: steady seconds that include suspended time."""

    def __init__(self, clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> None:
        self.clock = clock
        self._memory = b""
        self._memory_at = -math.inf
        # (seconds, value, risen): each point holds the total rise, so a point can be dropped without losing any rise
        self._series: dict[tuple[str, str], deque[Point]] = {}
        self._noted: dict[str, float] = {}

    def note(self, check: str, values: Mapping[str, float]) -> None:
        """Keep one reading of each counter; values that are not finite (nan, inf) are ignored."""
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
    def _keep(series: deque[Point], now: float, value: float) -> None:
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
        """Seconds since the check's last reading; infinite before the first."""
        return self.clock() - self._noted[check] if check in self._noted else math.inf

    def noted(self, check: str) -> bool:
        """True once the check has stored a reading."""
        return check in self._noted

    def of(self, check: str) -> dict[str, CounterSeries]:
        """Every series of the check, by counter name."""
        return {
            name: CounterSeries(tuple((at, value) for at, value, _ in points), tuple(risen for _, _, risen in points))
            for (owner, name), points in self._series.items()
            if owner == check
        }

    def memory(self, boot_id: str, *, newest: bool = False) -> bytes:
        """All readings, for :meth:`restore`; at most :data:`MEMORY_LIMIT_BYTES`, thinning old readings to fit.

        boot_id: the boot that this clock belongs to. newest: rebuild the state even if the last one is recent (at exit)
        """
        now = self.clock()
        if newest or now - self._memory_at >= MEMORY_KEPT_S:
            self._memory, self._memory_at = self._pack(boot_id), now
        return self._memory

    def restore(self, memory: bytes, boot_id: str) -> bool:
        """Continue from what :meth:`memory` returned; call before the first reading. Returns False and restores nothing
        if the state cannot be read or comes from another boot, whose clock and counters differ."""
        if not memory or not boot_id:
            return False
        try:
            kept = msgspec.msgpack.decode(memory, type=_SavedHistory)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        now = self.clock()
        times = [*kept.noted.values(), *(at for _, _, points in kept.series for at, _, _ in points)]
        if kept.boot_id != boot_id or not all(0 <= at <= now for at in times):
            return False  # clocks start at 0 with the boot: a time in the future is from another boot, whatever its ID
        self._noted = dict(kept.noted)
        self._series = {(check, name): deque(points) for check, name, points in kept.series[:SERIES_LIMIT] if points}
        return True

    def _pack(self, boot_id: str) -> bytes:
        # if two readings of each series are still too many, those longest without a new reading are dropped first
        newest_first = sorted(self._series.items(), key=lambda item: item[1][-1][0], reverse=True)
        sized = [
            (_text_bytes(check) + _text_bytes(name), check, name, points)
            for (check, name), points in newest_first
            if name.isascii() or _is_text(name)
        ]
        room = MEMORY_LIMIT_BYTES - sum(_text_bytes(text) + POINT_BYTES for text in (boot_id, *self._noted))
        names_bytes = sum(size for size, *_ in sized)
        most = POINTS_LIMIT
        while most > 2 and names_bytes + POINT_BYTES * sum(min(len(points), most) for *_, points in sized) > room:
            most //= 2
        chosen: list[tuple[str, str, tuple[Point, ...]]] = []
        for size, check, name, points in sized:
            room -= size + POINT_BYTES * min(len(points), most)
            if room < 0:
                break
            chosen.append((check, name, _thin(points, most)))
        return msgspec.msgpack.encode(_SavedHistory(boot_id, self._noted, tuple(chosen)))

    def _forget_stale(self, now: float) -> None:
        for key in [key for key, points in self._series.items() if points[-1][0] < now - 86_400.0]:
            del self._series[key]


def _text_bytes(text: str) -> int:
    """Size in msgpack, including its frame."""
    return len(text.encode("utf-8", "surrogatepass")) + 5


def _is_text(name: str) -> bool:
    """False for a name that contains bytes that were not UTF-8 (a file name in /sys)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _thin(points: deque[Point], most: int) -> tuple[Point, ...]:
    """At most ``most`` (2 or more) of the points: the whole newer half, the first point, and evenly spaced ones in
    between. Each point holds the total rise before it, so no rise is lost."""
    if len(points) <= most:
        return tuple(points)
    every = list(points)
    newest = max(1, most // 2)
    older, step = every[:-newest], -(-(len(every) - newest) // (most - newest))
    return (*older[::step], *every[-newest:])


async def read_series(
    history: History,
    check: str,
    read: Callable[[], Awaitable[Mapping[str, float]]],
    first_interval_s: float,
) -> dict[str, CounterSeries]:
    """Read counters, store them, and return all their series.

    On the first run there is nothing to compare with, so they are read twice, ``first_interval_s`` apart: a person who
    runs the check once sees whether something is rising now.
    """
    if not history.noted(check):
        history.note(check, await read())
        await asyncio.sleep(first_interval_s)
    history.note(check, await read())
    return history.of(check)

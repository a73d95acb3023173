"""Token buckets, which limit how often a controller writes: a burst, then one write per interval."""

from collections import OrderedDict
from collections.abc import Callable

KEYS_LIMIT = 8192  # the buckets that were not used for longest are dropped


class TokenBucket:
    """``burst`` tokens, then one every ``refill_s`` seconds. The caller passes the time (monotonic seconds)."""

    __slots__ = ("_at", "_burst", "_left", "_refill_s")

    def __init__(self, burst: int, refill_s: float) -> None:
        self._burst = float(burst)
        self._refill_s = refill_s
        self._left = float(burst)
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take a token: returns 0, or the seconds until there is one."""
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) / self._refill_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) * self._refill_s
        self._left -= 1.0
        return 0.0


class TokenBuckets:
    """One bucket for each key, of at most KEYS_LIMIT keys. clock: monotonic seconds"""

    def __init__(self, burst: int, refill_s: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token of this key: returns 0, or the seconds until there is one."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._burst, self._refill_s)
        self._buckets.move_to_end(key)
        while len(self._buckets) > KEYS_LIMIT:
            self._buckets.popitem(last=False)
        return bucket.take(self._clock())

    def clear(self) -> None:
        self._buckets.clear()

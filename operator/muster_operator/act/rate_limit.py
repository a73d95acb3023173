"""What one job may cost: a few at once, then one in a while. However many jobs there are, this stays small."""

from collections import OrderedDict
from collections.abc import Callable

KNOWN_LIMIT = 8192  # jobs; of those that were quiet for longest nothing is remembered


class JobRateLimit:
    """burst: so many at once; refill_s: until there may be one more; clock: monotonic seconds."""

    def __init__(self, burst: int, refill_s: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._clock = clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by job, and as of when

    def take(self, uid: str) -> float:
        """Seconds until there is one again; 0: there is, and it is taken."""
        at = self._clock()
        spent, since = self._spent.pop(uid, (0.0, at))
        spent = max(0.0, spent - (at - since) / self._refill_s)
        over = spent + 1 - self._burst
        self._spent[uid] = (spent if over > 0 else spent + 1), at
        while len(self._spent) > KNOWN_LIMIT:
            self._spent.popitem(last=False)
        return max(0.0, over * self._refill_s)

    def clear(self) -> None:
        self._spent.clear()

"""What happens at which moment. Events at the same second happen in the order of :class:`Turn`, then in the order in
which they were planned; so the same input always gives the same run."""

import heapq
from collections.abc import Callable
from enum import IntEnum
from itertools import count

NEVER = float("inf")
Action = Callable[[], None]


class Turn(IntEnum):
    """The order at one second: the hardware first, then what is reported, then what people and the tainter do, and the
    jobs last. The tainter's decisions follow all of them, then the scheduler places jobs."""

    REPAIRED = 0
    REPAIR_ENDS = 1
    FAULT = 2
    REPORT = 3
    ANSWER = 4
    CLEAR = 5
    LOOK = 6
    JOB_CRASHES = 7
    JOB_ENDS = 8
    JOB_QUEUED = 9


class EventQueue:
    def __init__(self) -> None:
        self._events: list[tuple[float, Turn, int, Action]] = []
        self._number = count()

    def at(self, at: float, turn: Turn, action: Action) -> None:
        """at: seconds since the epoch; rounded up to a whole second."""
        heapq.heappush(self._events, (float(-int(-at // 1)), turn, next(self._number), action))

    @property
    def next_at(self) -> float:
        return self._events[0][0] if self._events else NEVER

    def run(self, now: float) -> None:
        """All events until ``now``, and those that they plan for now."""
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[3]()

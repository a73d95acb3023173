"""Intervals and timeouts of the proxy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Intervals:
    """Seconds. poll: between two looks at a passing state, growing; retry: after V-IPU did not answer, growing; count:
    between two counts of free IPUs for the metric while partitions change; late: how long V-IPU may still create a
    partition after an unanswered call; answer: for the capacity of one controller."""

    poll_s: float = 0.2
    poll_cap_s: float = 5.0
    retry_s: float = 1.0
    retry_cap_s: float = 60.0
    count_s: float = 1.0
    late_s: float = 20.0
    answer_s: float = 6.0  # the operator waits 8


@dataclass(frozen=True)
class RequestTimeouts:
    """Seconds that a request of the operator waits: for the write of the tracker, then for V-IPU."""

    write_s: float = 10.0  # after this time the request fails with Unreachable
    vipu_s: float = 2.0

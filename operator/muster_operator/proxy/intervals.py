"""How often the proxy looks at things, and how long it waits for an answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Intervals:
    """Seconds. poll: between two looks at a passing state, growing; retry: after V-IPU gave no answer, growing; count:
    between two counts of free IPUs for the metric, while partitions come and go; late: in which V-IPU may still make
    what it has not answered for; answer: for one controller's word about its room."""

    poll_s: float = 0.2
    poll_cap_s: float = 5.0
    retry_s: float = 1.0
    retry_cap_s: float = 60.0
    count_s: float = 1.0
    late_s: float = 20.0
    answer_s: float = 6.0  # the operator waits 8


@dataclass(frozen=True)
class RequestTimeouts:
    """Seconds that a request of the operator waits: for the tracker's write, and for V-IPU after it."""

    write_s: float = 10.0  # longer, and whoever asks is told that the API server is away
    vipu_s: float = 2.0

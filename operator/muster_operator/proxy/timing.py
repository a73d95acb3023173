"""How fast things are looked at, and what is remembered meanwhile; nothing of it matters."""

from dataclasses import dataclass, field


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


@dataclass
class PartitionProgress:
    """What this process remembers of one partition while it is on its way; nothing that matters.

    fresh: the attempt that was begun or reset here. is_sure: no creation whose outcome is not known; late_until: until
    when one may still happen, on the event loop's clock; verify: look even if the entry is settled
    """

    fresh: int | None = None
    is_sure: bool = False
    late_until: float = 0.0
    verify: bool = False
    polls: int = 0
    failures: int = 0
    is_sick: bool = False  # in ERROR, or not what was asked for, at the last look
    parks: int = 0
    refused_by: set[str] = field(default_factory=set)

    def next_poll_s(self, pace: Intervals) -> float:
        self.polls += 1
        return min(pace.poll_cap_s, pace.poll_s * 1.5 ** min(self.polls - 1, 40))

"""In-memory progress of one partition in a passing state; nothing of it is needed after a restart."""

from dataclasses import dataclass, field

from muster_operator.proxy.intervals import Intervals


@dataclass
class PartitionProgress:
    """fresh: the attempt that this process created or reset. is_sure: there is no creation with an unknown outcome;
    is_only_unanswered: the last creation was not answered, and no earlier one can still happen; verify: check V-IPU
    even if the entry is settled"""

    fresh: int | None = None
    is_sure: bool = False
    is_only_unanswered: bool = False
    verify: bool = False
    polls: int = 0
    failures: int = 0
    is_sick: bool = False  # in ERROR, or not as requested, at the last look
    parks: int = 0
    refused_by: set[str] = field(default_factory=set)

    def next_poll_s(self, intervals: Intervals) -> float:
        self.polls += 1
        return min(intervals.poll_cap_s, intervals.poll_s * 1.5 ** min(self.polls - 1, 40))

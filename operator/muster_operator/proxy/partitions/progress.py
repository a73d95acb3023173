"""What this process remembers of one partition while it is on its way; nothing of it matters after a restart."""

from dataclasses import dataclass, field

from muster_operator.proxy.intervals import Intervals


@dataclass
class PartitionProgress:
    """fresh: the attempt that was begun or reset here. is_sure: no creation whose outcome is not known; late_until:
    until when one may still happen, on the event loop's clock; verify: look even if the entry is settled
    """

    fresh: int | None = None
    is_sure: bool = False
    late_until: float = 0.0
    verify: bool = False
    polls: int = 0
    failures: int = 0
    is_sick: bool = False  # in ERROR, or not what was requested, at the last look
    parks: int = 0
    refused_by: set[str] = field(default_factory=set)

    def next_poll_s(self, intervals: Intervals) -> float:
        self.polls += 1
        return min(intervals.poll_cap_s, intervals.poll_s * 1.5 ** min(self.polls - 1, 40))

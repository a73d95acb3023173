"""Has a job stalled, and which ranks have not completed the step that the others have?

A rank counts a step when its own work is done, before it waits for others. So in a synchronous job that hangs, the
ranks that wait have counted one step more than those that they wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from muster_tainter.step_times.job_series import RankSeries

STALLED_S = 600.0
"""PyTorch's default time-out for collectives of NCCL is 10 minutes: what takes longer is no usual step."""
STEPS = 10  # of the job's own steps: a job of very long steps has not stalled
FRESH_READINGS = 3  # a series that ended this long ago says nothing


@dataclass(frozen=True)
class Stall:
    """since_at: when the last step was completed, in seconds since the epoch. behind: the ranks that others wait for,
    at most half of them; empty if that cannot be told."""

    since_at: float
    behind: Sequence[RankSeries]


def find_stall(series: Sequence[RankSeries], reading_s: float) -> Stall | None:
    """reading_s: between two readings. None: the job goes on, or nothing is known about it."""
    newest = max((each.seen for each in series), default=0.0)
    live = [each for each in series if newest - each.seen <= FRESH_READINGS * reading_s]
    if len(live) < 2:
        return None
    since_at = max(each.times[-1] for each in live)
    if newest - since_at < max(STALLED_S, STEPS * _step_s(live)):
        return None
    most = max(each.counts[-1] for each in live)
    behind = [each for each in live if each.counts[-1] == most - 1]
    waiting = sum(each.counts[-1] == most for each in live)
    # other differences mean that ranks count other steps
    known = len(behind) + waiting == len(live) and 2 * len(behind) <= len(live)
    return Stall(since_at, behind if known else ())


def _step_s(live: Sequence[RankSeries]) -> float:
    steps = [
        (each.times[-1] - each.times[0]) / (each.counts[-1] - each.counts[0]) for each in live if len(each.times) > 1
    ]
    return median(steps) if steps else 0.0

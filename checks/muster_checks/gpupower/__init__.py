"""The check ``gpupower``: GPUs that hardware slows down, for want of power or of cooling."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check

WINDOW_S = 600.0
LEAST_WATCHED_S = 60.0
"""A share of time means something only when that much was watched."""


class GpupowerParameters(Parameters):
    # our own; a slowdown halves the clocks at least, so a tenth of the time costs a job 5 % and all its peers with it
    max_slowdown_share: float = Field(
        default=0.1, gt=0.0, le=1.0, description="share of 10 minutes in a hardware slowdown, above which a GPU fails"
    )


def _judge() -> GpuJudge:
    from muster_checks.gpupower.judge import counters, judge

    return GpuJudge(judge, counters)


GPUPOWER = gpu_check(
    "gpupower",
    GpupowerParameters,
    _judge,
    description="GPU clocks that hardware holds down (power brake, heat), power limits, persistence mode",
    examples=("check=gpupower",),
)

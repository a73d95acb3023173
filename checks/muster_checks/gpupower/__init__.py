"""The check ``gpupower``: GPUs whose clocks the hardware reduces because of power or heat."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check

WINDOW_S = 600.0
LEAST_WATCHED_S = 60.0
"""Minimum observed time for a share of time to be meaningful."""


class GpupowerParameters(Parameters):
    # our own value: a slowdown at least halves the clocks, so a tenth of the time costs a job and all its peers 5 %
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
    description="GPU clocks reduced by hardware (power brake, heat), power limits, persistence mode",
    examples=("check=gpupower",),
)

"""The check ``gputemp``: how far GPUs are from the temperature at which they slow down."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check


class GputempParameters(Parameters):
    # our own: hot GPUs under full load keep 8 to 20 degrees, and cooling that is failing takes minutes, not hours
    min_margin_c: float = Field(
        default=5.0, ge=0.0, le=60.0, description="degrees below its slowdown (GPU) or limit (memory) at which it warns"
    )


def _judge() -> GpuJudge:
    from muster_checks.gputemp.judge import judge

    return GpuJudge(lambda reading, _, limits: judge(reading, limits))


GPUTEMP = gpu_check(
    "gputemp",
    GputempParameters,
    _judge,
    description="GPU temperatures: the margin to the GPU's own slowdown limit, and that of its memory",
    examples=("check=gputemp",),
)

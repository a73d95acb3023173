"""The check ``gputemp``: the margin between each GPU's temperature and the one at which it slows down."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check


class GputempParameters(Parameters):
    # our own value: hot GPUs under full load keep 8 to 20 degrees, and failing cooling takes minutes, not hours
    min_margin_c: float = Field(
        default=5.0,
        ge=0.0,
        le=60.0,
        description="degrees below the slowdown temperature (GPU) or limit (memory) at which it warns",
    )


def _judge() -> GpuJudge:
    from muster_checks.gputemp.judge import judge

    return GpuJudge(lambda reading, _, limits: judge(reading, limits))


GPUTEMP = gpu_check(
    "gputemp",
    GputempParameters,
    _judge,
    description="GPU temperatures: the margin to the slowdown temperature of the GPU and to the limit of its memory",
    examples=("check=gputemp",),
)

"""The check ``gpuecc``: errors that the ECC of GPU memory and caches detected."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check

CORRECTED_WINDOW_S = 3600.0


class GpueccParameters(Parameters):
    # no vendor gives a rate; fleets accept 50,000,000 (gcm) or 20,000,000 (Azure) errors in total
    max_corrected_per_hour: int = Field(
        default=100_000, ge=1, description="corrected errors of one GPU within an hour, above which it warns"
    )


def _judge() -> GpuJudge:
    from muster_checks.gpuecc.judge import counters, judge

    return GpuJudge(judge, counters)


GPUECC = gpu_check(
    "gpuecc",
    GpueccParameters,
    _judge,
    description="GPU ECC: uncorrectable memory and cache errors, unrepairable caches, high rates of corrected errors",
    examples=("check=gpuecc", "check=gpuecc&max_corrected_per_hour=1000"),
)

"""The check ``remapped``: bad rows or pages of GPU memory that were replaced or could not be replaced."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check


class RemappedParameters(Parameters):
    # NVIDIA's dynamic page retirement guide: replace a GPU with 60 pages, or with 15 if the number still grows
    warn_retired_pages: int = Field(default=15, ge=1, le=64, description="number of retired pages from which it warns")
    max_retired_pages: int = Field(default=60, ge=1, le=64, description="number of retired pages from which it fails")


def _judge() -> GpuJudge:
    from muster_checks.remapped.judge import judge

    return GpuJudge(lambda reading, _, limits: judge(reading, limits))


REMAPPED = gpu_check(
    "remapped",
    RemappedParameters,
    _judge,
    description="GPU memory: pending and failed row remappings, remaining spare rows, retired pages",
    examples=("check=remapped",),
)

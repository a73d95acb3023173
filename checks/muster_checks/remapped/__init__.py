"""The check ``remapped``: GPU memory whose bad rows or pages were replaced, or could not be."""

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check


class RemappedParameters(Parameters):
    # NVIDIA's dynamic page retirement guide: replaced from 60 pages on, and from 15 on while the number still grows
    warn_retired_pages: int = Field(default=15, ge=1, le=64, description="retired pages from which a GPU warns")
    max_retired_pages: int = Field(default=60, ge=1, le=64, description="retired pages from which a GPU fails")


def _judge() -> GpuJudge:
    from muster_checks.remapped.judge import judge

    return GpuJudge(lambda reading, _, limits: judge(reading, limits))


REMAPPED = gpu_check(
    "remapped",
    RemappedParameters,
    _judge,
    description="GPU memory: rows waiting to be remapped, failed remappings, spare rows left, retired pages",
    examples=("check=remapped",),
)

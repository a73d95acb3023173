"""The check ``gpuecc``: errors that the ECC of GPU memory and caches detected."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import RAN_ON, GpuJudge, gpu_check, recorded_by

CORRECTED_WINDOW_S = 3600.0


class GpueccParameters(Parameters):
    # no vendor gives a rate; fleets accept 50,000,000 (gcm) or 20,000,000 (Azure) errors in total
    max_corrected_per_hour: int = Field(
        default=100_000, ge=1, description="corrected errors of one GPU within an hour, above which it warns"
    )


def _judge() -> GpuJudge:
    from muster_checks.gpuecc.judge import counters, judge

    return GpuJudge(judge, counters)


def _recorded(text: bytes, parameters: GpueccParameters) -> Sequence[Finding] | None:
    from muster_checks.gpuecc.rocm_smi import judge_rocm_smi

    return judge_rocm_smi(text) or recorded_by(_judge)(text, parameters)


GPUECC = gpu_check(
    "gpuecc",
    GpueccParameters,
    _judge,
    recorded=_recorded,
    description="GPU ECC: uncorrectable memory and cache errors, unrepairable caches, high rates of corrected errors",
    ran_on=f"{RAN_ON}; `rocm-smi --showrasinfo` (AMD, only recorded) in the form of its source",
    examples=("check=gpuecc", "check=gpuecc&max_corrected_per_hour=1000"),
)

"""The check ``gpuecc``: errors that the ECC of GPU memory and caches found."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus

NAME = "gpuecc"
CORRECTED_WINDOW_S = 3600.0


class GpueccParameters(Parameters):
    # no vendor names a rate; fleets run on with 50,000,000 in all (gcm) or 20,000,000 (Azure)
    max_corrected_per_hour: int = Field(
        default=100_000, ge=1, description="corrected errors of one GPU within an hour, above which it warns"
    )


async def _probe(node: NodeView, parameters: GpueccParameters) -> list[Finding]:
    from muster_checks.gpuecc.judge import counters, judge
    from muster_checks.nvidia.judge import read_counted

    reading, series = await read_counted(node, NAME, counters)
    return judge(reading, series, parameters)


def _recorded(text: bytes, parameters: GpueccParameters) -> list[Finding] | None:
    from muster_checks.gpuecc.judge import judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, {}, parameters)


GPUECC = Check(
    name=NAME,
    description="GPU ECC: uncorrectable errors of memory and caches, caches beyond repair, a flood of corrected errors",
    cost=Cost.LIGHT,
    parameters=GpueccParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu",),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=READS,
    ran_on=RAN_ON,
    examples=("check=gpuecc", "check=gpuecc&max_corrected_per_hour=1000"),
)

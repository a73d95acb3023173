"""The check ``gpupower``: GPUs that hardware slows down, for want of power or of cooling."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus

NAME = "gpupower"
WINDOW_S = 600.0
LEAST_WATCHED_S = 60.0
"""A share of time means something only when that much was watched."""


class GpupowerParameters(Parameters):
    # our own; a slowdown halves the clocks at least, so a tenth of the time costs a job 5 % and all its peers with it
    max_slowdown_share: float = Field(
        default=0.1, gt=0.0, le=1.0, description="share of 10 minutes in a hardware slowdown, above which a GPU fails"
    )


async def _probe(node: NodeView, parameters: GpupowerParameters) -> list[Finding]:
    from muster_checks.gpupower.judge import counters, judge
    from muster_checks.nvidia.judge import read_counted

    reading, series = await read_counted(node, NAME, counters)
    return judge(reading, series, parameters)


def _recorded(text: bytes, parameters: GpupowerParameters) -> list[Finding] | None:
    from muster_checks.gpupower.judge import judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, {}, parameters)


GPUPOWER = Check(
    name=NAME,
    description="GPU clocks that hardware holds down (power brake, heat), power limits, persistence mode",
    cost=Cost.LIGHT,
    parameters=GpupowerParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu",),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=READS,
    ran_on=RAN_ON,
    examples=("check=gpupower",),
)

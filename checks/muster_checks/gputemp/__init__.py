"""The check ``gputemp``: how far GPUs are from the temperature at which they slow down."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus


class GputempParameters(Parameters):
    # our own: hot GPUs under full load keep 8 to 20 degrees, and cooling that is failing takes minutes, not hours
    min_margin_c: float = Field(
        default=5.0, ge=0.0, le=60.0, description="degrees below its slowdown (GPU) or limit (memory) at which it warns"
    )


async def _probe(node: NodeView, parameters: GputempParameters) -> list[Finding]:
    from muster_checks.gputemp.judge import judge
    from muster_checks.nvidia.probe import read_gpus

    return judge(await read_gpus(node), parameters)


def _recorded(text: bytes, parameters: GputempParameters) -> list[Finding] | None:
    from muster_checks.gputemp.judge import judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, parameters)


GPUTEMP = Check(
    name="gputemp",
    description="GPU temperatures: the margin to the GPU's own slowdown limit, and that of its memory",
    cost=Cost.LIGHT,
    parameters=GputempParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu",),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=READS,
    ran_on=RAN_ON,
    examples=("check=gputemp",),
)

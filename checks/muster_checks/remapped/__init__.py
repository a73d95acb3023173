"""The check ``remapped``: GPU memory whose bad rows or pages were replaced, or could not be."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus


class RemappedParameters(Parameters):
    # NVIDIA's dynamic page retirement guide: replaced from 60 pages on, and from 15 on while the number still grows
    warn_retired_pages: int = Field(default=15, ge=1, le=64, description="retired pages from which a GPU warns")
    max_retired_pages: int = Field(default=60, ge=1, le=64, description="retired pages from which a GPU fails")


async def _probe(node: NodeView, parameters: RemappedParameters) -> list[Finding]:
    from muster_checks.nvidia.probe import read_gpus
    from muster_checks.remapped.judge import judge

    return judge(await read_gpus(node), parameters)


def _recorded(text: bytes, parameters: RemappedParameters) -> list[Finding] | None:
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml
    from muster_checks.remapped.judge import judge

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, parameters)


REMAPPED = Check(
    name="remapped",
    description="GPU memory: rows waiting to be remapped, failed remappings, spare rows left, retired pages",
    cost=Cost.LIGHT,
    parameters=RemappedParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu",),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=READS,
    ran_on=RAN_ON,
    examples=("check=remapped",),
)

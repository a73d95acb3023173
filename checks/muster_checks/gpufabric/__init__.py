"""The check ``gpufabric``: GPUs' registration with their NVSwitch fabric, and what the driver asks for."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus

NAME = "gpufabric"


class GpufabricParameters(Parameters):
    max_registering_s: float = Field(
        default=600.0,
        ge=60.0,
        le=86_400.0,
        description="a GPU that is not registered with its fabric after this time fails; before it warns",
    )


async def _probe(node: NodeView, parameters: GpufabricParameters) -> list[Finding]:
    from muster_checks.gpufabric.judge import judge, unregistered
    from muster_checks.nvidia.probe import read_gpus

    reading = await read_gpus(node)
    node.history.note(NAME, unregistered(reading))
    return judge(reading, node.history.of(NAME), parameters)


def _recorded(text: bytes, parameters: GpufabricParameters) -> list[Finding] | None:
    from muster_checks.gpufabric.judge import judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, {}, parameters)


GPUFABRIC = Check(
    name=NAME,
    description="NVSwitch fabric (HGX H100 and later, NVL72): registration, health; the recovery the driver asks for",
    cost=Cost.LIGHT,
    parameters=GpufabricParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu",),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=READS,
    ran_on=RAN_ON,
    examples=("check=gpufabric",),
)

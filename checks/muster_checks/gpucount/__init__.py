"""The check ``gpucount``: whether every GPU of the node is there and answers."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus


class GpucountParameters(Parameters):
    expected_count: int | None = Field(
        default=None, ge=0, le=64, description="NVIDIA GPUs that the node should have; without it those found count"
    )
    confirm_after_s: float = Field(
        default=10.0, ge=0.0, le=30.0, description="a GPU that seems to be missing is looked for again after this time"
    )


async def _probe(node: NodeView, parameters: GpucountParameters) -> list[Finding]:
    from muster_checks.gpucount.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: GpucountParameters) -> list[Finding] | None:
    from muster_checks.gpucount.judge import GpuCount, judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(GpuCount(reading=reading), parameters)


GPUCOUNT = Check(
    name="gpucount",
    description="GPUs on the PCI bus, with the driver and as expected; GPUs that are lost",
    cost=Cost.LIGHT,
    parameters=GpucountParameters,
    timeout_s=2 * READ_LIMIT_S + 30.0,  # what is amiss is read again after confirm_after_s
    devices=("gpu", "host"),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=f"/sys/bus/pci/devices; /proc/driver/nvidia/gpus; {READS}",
    ran_on=RAN_ON,
    examples=("check=gpucount", "check=gpucount&expected_count=8"),
)

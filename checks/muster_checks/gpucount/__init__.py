"""The check ``gpucount``: whether every GPU of the node is there and answers."""

from pydantic import Field

from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import READ_LIMIT_S, READS, GpuJudge, gpu_check


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


def _judge() -> GpuJudge:
    from muster_checks.gpucount.judge import GpuCount, judge

    return GpuJudge(lambda reading, _, limits: judge(GpuCount(reading=reading), limits))


GPUCOUNT = gpu_check(
    "gpucount",
    GpucountParameters,
    _judge,
    probe=_probe,
    description="GPUs on the PCI bus, with the driver and as expected; GPUs that are lost",
    timeout_s=2 * READ_LIMIT_S + 30.0,  # what is amiss is read again after confirm_after_s
    devices=("gpu", "host"),
    reads=f"/sys/bus/pci/devices; /proc/driver/nvidia/gpus; {READS}",
    examples=("check=gpucount", "check=gpucount&expected_count=8"),
)

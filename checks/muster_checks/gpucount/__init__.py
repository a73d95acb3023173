"""The check ``gpucount``: whether every GPU of the node is present and responds."""

from pydantic import Field

from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import READ_LIMIT_S, READS, GpuJudge, gpu_check


class GpucountParameters(Parameters):
    expected_count: int | None = Field(
        default=None, ge=0, le=64, description="number of NVIDIA GPUs that the node should have; unset: any number"
    )
    confirm_after_s: float = Field(
        default=10.0,
        ge=0.0,
        le=30.0,
        description="seconds after which it looks again for a GPU that seems to be missing",
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
    description="number of GPUs on the PCI bus and with the driver, against the expected one; lost GPUs",
    timeout_s=2 * READ_LIMIT_S + 30.0,  # a failure is confirmed by a second reading after confirm_after_s
    devices=("gpu", "host"),
    reads=f"/sys/bus/pci/devices; /proc/driver/nvidia/gpus; {READS}",
    examples=("check=gpucount", "check=gpucount&expected_count=8"),
)

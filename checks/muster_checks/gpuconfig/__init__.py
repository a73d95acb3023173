"""The check ``gpuconfig``: GPU configuration that stops or slows down the GPU or its neighbours."""

from pydantic import Field

from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import RAN_ON, READS, GpuJudge, gpu_check

NAME = "gpuconfig"


class GpuconfigParameters(Parameters):
    # our own value: less than any CUDA context on a data-centre GPU, more than DCGM's profiling or a debugger keeps
    max_idle_memory_mib: float = Field(
        default=256.0,
        ge=0.0,
        description="memory in use (without the driver's own share) on a GPU without a process, above which it warns",
    )
    # no default: the right value depends on the model; gcm requires 1155 and 1593 of its A100s
    min_application_graphics_mhz: float | None = Field(
        default=None,
        gt=0.0,
        description="application clock of the cores below which it warns; unset: compare with the same model",
    )
    min_application_memory_mhz: float | None = Field(
        default=None,
        gt=0.0,
        description="application clock of the memory below which it warns; unset: compare with the same model",
    )


async def _probe(node: NodeView, parameters: GpuconfigParameters) -> list[Finding]:
    from muster_checks.gpuconfig.probe import probe

    return await probe(node, parameters)


def _judge() -> GpuJudge:
    from muster_checks.gpuconfig.judge import judge

    return GpuJudge(lambda reading, _, limits: judge(reading, None, limits))


GPUCONFIG = gpu_check(
    NAME,
    GpuconfigParameters,
    _judge,
    probe=_probe,
    description="GPU configuration: corrupt InfoROM, VBIOS, MIG and compute modes, application clocks, leftover "
    "memory, PCIe ACS between GPUs",
    devices=("gpu", "host"),
    reads=f"{READS}; PCI configuration space in /sys/bus/pci/devices/*/config (root only), /proc/cpuinfo, "
    "/proc/self/ns/pid (leftover memory is judged in the node's own PID namespace only)",
    ran_on=f"{RAN_ON}; a corrupt InfoROM only as quoted on NVIDIA's GPU Operator page; ACS on hand-made configuration "
    "spaces",
    examples=("check=gpuconfig", "check=gpuconfig&max_idle_memory_mib=15"),
)

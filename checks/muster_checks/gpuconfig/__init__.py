"""The check ``gpuconfig``: what of a GPU's configuration keeps it, or its neighbours, from their work."""

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import RAN_ON, READ_LIMIT_S, READS, resume_gpus

NAME = "gpuconfig"


class GpuconfigParameters(Parameters):
    # our own: below any CUDA context of a data-centre GPU, and above what DCGM's profiling or a debugger keeps
    max_idle_memory_mib: float = Field(
        default=256.0,
        ge=0.0,
        description="memory in use beside the driver's own share while no process is on the GPU, above which it warns",
    )
    # none by default: what is right depends on the model; a fleet of A100 asks for 1155 and 1593 (gcm)
    min_application_graphics_mhz: float | None = Field(
        default=None, gt=0.0, description="application clock of the cores below which it warns; unset: by its equals"
    )
    min_application_memory_mhz: float | None = Field(
        default=None, gt=0.0, description="application clock of the memory below which it warns; unset: by its equals"
    )


async def _probe(node: NodeView, parameters: GpuconfigParameters) -> list[Finding]:
    from muster_checks.gpuconfig.acs import judge_ports, read_ports
    from muster_checks.gpuconfig.judge import counters, judge, sees_all_processes
    from muster_checks.nvidia.judge import read_counted

    sees_all = sees_all_processes(node)
    reading, series = await read_counted(node, NAME, lambda reading: counters(reading, sees_all))
    return [*judge(reading, series, parameters, sees_all), *judge_ports(read_ports(node))]


def _recorded(text: bytes, parameters: GpuconfigParameters) -> list[Finding] | None:
    from muster_checks.gpuconfig.judge import judge
    from muster_checks.nvidia.smi_xml import parse_if_smi_xml

    reading = parse_if_smi_xml(text)
    return None if reading is None else judge(reading, None, parameters)


GPUCONFIG = Check(
    name=NAME,
    description="GPU configuration: corrupt InfoROM, VBIOS, MIG and compute modes, application clocks, leftover "
    "memory, PCIe ACS between GPUs",
    cost=Cost.LIGHT,
    parameters=GpuconfigParameters,
    timeout_s=READ_LIMIT_S,
    devices=("gpu", "host"),
    period_s=60.0,
    shares="nvml",
    probe=_probe,
    recorded=_recorded,
    resume=resume_gpus,
    reads=f"{READS}; PCI configuration space in /sys/bus/pci/devices/*/config (root only), /proc/cpuinfo, "
    "/proc/self/ns/pid (leftover memory is judged in the node's own PID namespace only)",
    ran_on=f"{RAN_ON}; a corrupt InfoROM in the words of NVIDIA's GPU Operator page only; ACS on made-up configuration "
    "spaces",
    examples=("check=gpuconfig", "check=gpuconfig&max_idle_memory_mib=15"),
)

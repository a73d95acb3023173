"""Runs the tests on each GPU in a child process and judges their results."""

from collections.abc import Sequence

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.cuda.busy_gpus import find_busy_gpus
from muster_checks.cuda.launcher import NOT_OFFERED, GpuRun, read_runs, run_on_each_gpu
from muster_checks.cuda.protocol import ArithmeticResult, decode
from muster_checks.gpumem import GpumemParameters
from muster_checks.gpumem.judge import GpumemLimits, judge
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.hardware.pci import normal_address, nvidia_gpus
from muster_checks.nvidia.models import GpuModel, gpu_models

# a healthy GPU takes a second or two, and 60 times that if FP64 runs at 1/64 and memory is large
PER_GPU_S = 120.0
TOTAL_S = 1200.0


async def probe(node: NodeView, parameters: GpumemParameters, limits: GpumemLimits) -> list[Finding]:
    models = gpu_models(parameters.expected)
    only = normal_address(parameters.gpu) if parameters.gpu else ""
    # a GPU passed to a virtual machine cannot be tested from here
    gpus = [gpu for gpu in await in_thread(node, nvidia_gpus, node) if gpu.driver in ("", "nvidia")]
    if not gpus:
        raise NotHere("no NVIDIA GPU on the PCI bus")
    gpus = [gpu for gpu in gpus if only in ("", gpu.address)]
    if not gpus:
        raise CannotTell(f"the PCI bus has no NVIDIA GPU {only}", "NoSuchGpu")
    held = await find_busy_gpus(node)
    share = f"{parameters.memory_share:g}"
    sweep = await run_on_each_gpu(
        node, "arithmetic", "--memory-share", share, per_gpu_s=PER_GPU_S, total_s=TOTAL_S, only=only
    )
    if not sweep.gpus and "libcuda" in sweep.rest:
        raise ToolMissing("libcuda.so.1", "the NVIDIA driver, with its CUDA library (libcuda1)")
    if not sweep.gpus:
        raise CannotTell(f"CUDA driver: {sweep.rest or NOT_OFFERED}", "NoCudaDevice")
    seen = {gpu.address for gpu in sweep.gpus}
    rest = sweep.rest or NOT_OFFERED
    unseen = [GpuRun(-1, gpu.address, "", trouble=rest) for gpu in gpus if gpu.address not in seen]
    return judge([*sweep.gpus, *unseen], models, held, limits)


def judge_recorded(text: bytes, limits: GpumemLimits, models: ModelTable[GpuModel]) -> Sequence[Finding] | None:
    """Judges the output of ``python -m muster_checks.cuda.arithmetic`` from another machine."""
    gpus = read_runs(decode(text), "the recording ends here")
    if not any(isinstance(gpu.result, ArithmeticResult) for gpu in gpus):
        return None
    return judge(gpus, models, {}, limits)

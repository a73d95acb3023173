"""Runs a child over all GPUs. If a GPU makes the child hang or crash, a new child continues with the next GPU."""

import signal
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from muster_checks.base.commands import Output, python_child
from muster_checks.base.declaration import NodeView
from muster_checks.cuda.protocol import ArithmeticResult, CopyResult, GpuFailure, GpuStart, Line, NoUsableGpu, decode
from muster_checks.hardware.pci import normal_address

GpuResult: TypeAlias = CopyResult | ArithmeticResult
RESTARTS_LIMIT = 32  # more GPUs than any node has
NOT_OFFERED = "the CUDA driver does not offer this GPU (hidden from this container, or MIG without an instance)"
# the driver's errors for a GPU that others use, or that is partitioned
_MEANING = {
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "used by another process, in exclusive mode",
    "CUDA_ERROR_OUT_OF_MEMORY": "another process holds its memory",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "libnvidia-ptxjitcompiler.so.1 is missing; it comes with the driver",
}


class GpuRun(msgspec.Struct, frozen=True):
    """The outcome for one GPU: ``result``, or ``trouble`` (why there is none) and ``error`` (the driver's name)."""

    index: int
    address: str
    name: str
    result: GpuResult | None = None
    trouble: str = ""
    error: str = ""


class GpuRuns(msgspec.Struct, frozen=True):
    """All GPUs that a child reported. ``rest``: why there may be others."""

    gpus: tuple[GpuRun, ...]
    rest: str = ""


async def run_on_each_gpu(
    node: NodeView, module: str, *arguments: str, per_gpu_s: float, total_s: float, only: str = ""
) -> GpuRuns:
    """Run ``muster_checks.cuda.<module>`` on every GPU that the driver offers.

    per_gpu_s, total_s:  seconds allowed for one GPU and for all
    only:                PCI address of the only one to use; empty: all
    """
    clock = node.history.clock
    end = clock() + total_s
    known: dict[int, GpuRun] = {}
    rest = f"not reached within {total_s:g} s"
    for _ in range(RESTARTS_LIMIT):
        if (left_s := end - clock()) <= 0:
            break
        options = ("--first", str(len(known)), "--per-gpu-s", f"{per_gpu_s:g}", "--root", str(node.root), *arguments)
        options += ("--only", only) if only else ()
        output = await node.commands.run(python_child(f"muster_checks.cuda.{module}", *options), timeout_s=left_s)
        lines = decode(output.stdout)
        seen = read_runs(lines, _end_of(output, per_gpu_s))
        known.update((gpu.index, gpu) for gpu in seen)
        if not seen or output.exit_code == 0 or only:
            reported = [line.message for line in lines if isinstance(line, NoUsableGpu)]
            rest = "; ".join(reported) or ("" if output.exit_code == 0 else _end_of(output, per_gpu_s))
            break
    return GpuRuns(tuple(known[index] for index in sorted(known)), rest)


def read_runs(lines: Sequence[Line], ended: str) -> list[GpuRun]:
    """Parse a child's lines. A GPU that was started but has no result is the one where the child ``ended``."""
    begun: dict[int, GpuStart] = {}
    gpus: dict[int, GpuRun] = {}
    for line in lines:
        match line:
            case GpuStart():
                begun[line.index] = line
                gpus[line.index] = GpuRun(line.index, normal_address(line.address), line.name, trouble=ended)
            case GpuFailure():
                meaning = _MEANING.get(line.error)
                trouble = f"{line.call}: {line.error}" + (f" ({meaning})" if meaning else "")
                gpus[line.index] = _of(begun, line.index, trouble=trouble, error=line.error)
            case CopyResult() | ArithmeticResult():
                gpus[line.index] = _of(begun, line.index, result=line)
    return [gpus[index] for index in sorted(gpus)]


def _of(
    begun: dict[int, GpuStart], index: int, result: GpuResult | None = None, trouble: str = "", error: str = ""
) -> GpuRun:
    known = begun.get(index)
    address, name = (normal_address(known.address), known.name) if known else ("", "")
    return GpuRun(index, address, name, result, trouble, error)


def _end_of(output: Output, per_gpu_s: float) -> str:
    if output.exit_code == -signal.SIGALRM:
        return f"did not finish within {per_gpu_s:g} s: the driver hangs"
    # stdout has been parsed; any message about the failure is on stderr
    return msgspec.structs.replace(output, stdout=b"").trouble or "ended without a result"

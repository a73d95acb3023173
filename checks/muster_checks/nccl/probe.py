"""Runs `all_reduce_perf` over the node's GPUs."""

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.cuda.busy_gpus import find_busy_gpus
from muster_checks.hardware.pci import nvidia_gpus
from muster_checks.nccl import NcclParameters
from muster_checks.nccl.judge import judge
from muster_checks.nccl.parse import parse


async def probe(node: NodeView, parameters: NcclParameters) -> list[Finding]:
    # a GPU that is assigned to a virtual machine is not tested
    gpus = [gpu for gpu in await in_thread(node, nvidia_gpus, node) if gpu.driver in ("", "nvidia")]
    if len(gpus) < 2:
        raise NotHere(f"{len(gpus)} NVIDIA GPUs: an all-reduce needs at least two")
    held = await find_busy_gpus(node)
    size = f"{parameters.size_mib}M"
    argv = ["all_reduce_perf", "-b", size, "-e", size, "-g", str(len(gpus)), "-n", "20", "-w", "5", "-c", "1"]
    output = await node.commands.run(argv, timeout_s=parameters.run_timeout_s)
    if output.missing:
        raise ToolMissing("all_reduce_perf", "nccl-tests (NVIDIA's; built from source)")
    try:
        run = parse(output.stdout)
    except Unreadable as error:
        raise CannotTell(output.trouble or str(error), "NcclFailed") from None
    # the exit code is also 1 for wrong results, which the table shows
    if output.exit_code not in (0, 1) or not (run.rows and run.rows[-1].bus_gb_per_s):
        raise CannotTell(output.trouble or "all_reduce_perf printed no result", "NcclFailed")
    return judge(run, parameters, held)


def judge_recorded(text: bytes, parameters: NcclParameters) -> list[Finding] | None:
    if b"busbw" not in text:
        return None
    return judge(parse(text), parameters, {})

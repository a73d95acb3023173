"""Who uses the accelerators, according to the vendors' tools. They take seconds, so they run only before a heavy check.

NVIDIA: memory in use, which includes processes that the agent's /proc does not show (another PID namespace).

Graphcore: applications attached to the IPUs of the partition in the agent's environment (IPUOF_VIPU_API_…,
IPUOF_CONFIG_PATH), on this host or, according to gc-monitor, in other namespaces. The IPUs of an IPU-Machine are
reached over RDMA, so no pod holds them as devices. Without such a partition their users are not visible here. This does
no harm, because tests of IPUs use a partition of free ones.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

from muster_agent.idle.device_users import has_nvidia
from muster_checks.base.declaration import NodeView

GC_MONITOR_S = 10.0
AGAIN_S = 1.0  # the memory of a process is released a moment after its end
_IPU_ENVIRONMENT = ("IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PARTITION_ID", "IPUOF_CONFIG_PATH")


async def query_vendor_tools(
    view: NodeView,
    *,
    environment: Mapping[str, str] = os.environ,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> str:
    """Who uses the accelerators, for people; empty if nobody does or the tools give no answer."""
    if busy := await query_gpu_memory(view, sleep=sleep):
        return busy
    if any(environment.get(name) for name in _IPU_ENVIRONMENT):
        output = await view.commands.run(["gc-monitor", "--no-card-info"], timeout_s=GC_MONITOR_S)
        if users := attached_applications(output.stdout):
            return f"gc-monitor shows {users[0]} attached to IPUs"
    return ""


async def query_gpu_memory(
    view: NodeView, address: str = "", *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> str:
    """Whose memory is in use among NVIDIA's GPUs, or of the one at ``address``, for people; empty: none's."""
    if has_nvidia(view) and await _gpus(view, address):
        await sleep(AGAIN_S)
        return await _gpus(view, address)
    return ""


async def _gpus(view: NodeView, address: str) -> str:
    from muster_checks.base.bounded_read import Unreadable
    from muster_checks.base.execution import CannotTell, NotHere
    from muster_checks.cuda.busy_gpus import IDLE_MIB
    from muster_checks.nvidia.probe import read_gpus

    try:
        reading = await read_gpus(view, max_age_s=0)
    except (NotHere, CannotTell, Unreadable):
        return ""  # the check that is about to run reports it
    for gpu in reading.gpus:
        if address and gpu.address != address:
            continue
        # with MIG, this is the sum of all slices
        if gpu.memory_used_mib is not None and gpu.memory_used_mib > IDLE_MIB:
            return f"{gpu.memory_used_mib:.0f} MiB of {gpu.label} are in use"
    return ""


def attached_applications(text: bytes) -> list[str]:
    """The applications in gc-monitor's tables of attached processes: a command with its PID, or a host.

    Source: the public samples listed in muster_checks.graphcore.tools.monitor. Without an active partition the tool
    crashes and prints nothing.
    """
    from muster_checks.graphcore.tools.monitor import split_rows
    from muster_checks.graphcore.tools.words import word

    found: dict[str, None] = {}
    for title, cells in split_rows(text):
        values = {heading: word(cell) for heading, cell in cells}
        if "ttached" in title and values.get("ID", "").isdigit():
            who = values.get("Command") or values.get("Application host") or "an application"
            found[f"{who} (PID {values['PID']})" if values.get("PID") else who] = None
    return list(found)

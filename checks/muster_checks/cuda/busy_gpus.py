"""Finds GPUs that other processes use: a low measurement on them is not the GPU's fault."""

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.nvidia.gpu import GpuReading
from muster_checks.nvidia.probe import read_gpus

# memory that the driver itself uses: 1 MiB on new drivers, up to 1 GiB on large GPUs before driver 510
IDLE_MIB = 2048.0


async def find_busy_gpus(node: NodeView) -> dict[str, str]:
    """Why a low figure proves nothing, by PCI address; empty if the driver does not answer."""
    try:
        return of(await read_gpus(node))
    except (NotHere, CannotTell, Unreadable):
        return {}


def of(reading: GpuReading) -> dict[str, str]:
    found = {}
    for gpu in reading.gpus:
        if gpu.mig:
            found[gpu.address] = "MIG is on, and a slice is not the whole GPU"
        elif gpu.memory_used_mib is not None and gpu.memory_used_mib > IDLE_MIB:
            found[gpu.address] = f"other processes use {gpu.memory_used_mib:.0f} MiB of its memory"
    return found

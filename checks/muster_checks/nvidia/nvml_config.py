"""Asks NVML how a GPU is set up, and what uses it (for nvml_child.py)."""

from collections.abc import Sequence

from muster_checks.nvidia.gpu import ComputeMode, GpuConfig
from muster_checks.nvidia.nvml_query import NvmlQuery

MODES = (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_THREAD, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS)
"""In the order of nvmlComputeMode_t."""
ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
GRAPHICS, MEMORY = 0, 2  # nvmlClockType_t
MIB = 1 << 20


def read_config(asker: NvmlQuery, mig: Sequence[int] | None) -> GpuConfig:
    """``mig``: current and pending mode, None for a GPU without it."""
    graphics, memory, default_graphics, default_memory = (
        asker.ask("config.application_clocks", name, kind)
        for name in ("ApplicationsClock", "DefaultApplicationsClock")
        for kind in (GRAPHICS, MEMORY)
    )
    mode = asker.ask("config.compute_mode", "ComputeMode")
    # of a GPU in MIG mode NVML counts for privileged callers only, and each instance has a share of its own
    processes = None if mig is not None and mig[0] else _processes(asker)
    # version 2 leaves out what the driver keeps for itself (400 MiB and more since driver 510), version 1 adds it in
    allocated = asker.ask("config.memory_allocated_mib", "MemoryInfo", asker.nvml.nvmlMemory_v2)
    return GpuConfig(
        inforom_valid=asker.inforom_valid("config.inforom_valid"),
        mig_pending=None if mig is None else bool(mig[1]),
        compute_mode=MODES[mode] if mode is not None and mode < len(MODES) else None,
        processes=processes,
        memory_allocated_mib=None if allocated is None else allocated.used / MIB,
        numa_memory=_numa_memory(asker),
        application_graphics_mhz=graphics,
        application_memory_mhz=memory,
        default_application_graphics_mhz=default_graphics,
        default_application_memory_mhz=default_memory,
    )


def _processes(asker: NvmlQuery) -> int | None:
    pids: set[int] = set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        names = (f"{kind}RunningProcesses_v{version}" for version in (3, 2))
        found = asker.first("config.processes", *names)
        if found is None and kind == "Compute":
            return None
        pids.update(process.pid for process in found or ())
    return len(pids)


def _numa_memory(asker: NvmlQuery) -> bool | None:
    mode = asker.ask("config.numa_memory", "AddressingMode")
    if mode is not None:
        return bool(mode == ATS)
    return True if asker.ask("config.numa_memory", "NumaNodeId") is not None else None  # drivers before 545

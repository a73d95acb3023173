"""Reads the configuration and use of a GPU through NVML (for nvml_child.py)."""

from collections.abc import Sequence

from muster_checks.nvidia.gpu import ComputeMode, GpuConfig
from muster_checks.nvidia.nvml_query import NvmlQuery

MODES = (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_THREAD, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS)
"""In the order of nvmlComputeMode_t."""
ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
GRAPHICS, MEMORY = 0, 2  # nvmlClockType_t
MIB = 1 << 20


def read_config(query: NvmlQuery, mig: Sequence[int] | None) -> GpuConfig:
    """``mig``: current and pending mode; None for a GPU without MIG."""
    graphics, memory, default_graphics, default_memory = (
        query.get("config.application_clocks", name, kind)
        for name in ("ApplicationsClock", "DefaultApplicationsClock")
        for kind in (GRAPHICS, MEMORY)
    )
    mode = query.get("config.compute_mode", "ComputeMode")
    # in MIG mode NVML lists processes for privileged callers only, and each instance has its own
    processes = None if mig is not None and mig[0] else _processes(query)
    # version 2 excludes the driver's own share (400 MiB and more since driver 510), version 1 includes it
    allocated = query.get("config.memory_allocated_mib", "MemoryInfo", query.nvml.nvmlMemory_v2)
    return GpuConfig(
        inforom_valid=query.inforom_valid("config.inforom_valid"),
        mig_pending=None if mig is None else bool(mig[1]),
        compute_mode=MODES[mode] if mode is not None and mode < len(MODES) else None,
        processes=processes,
        memory_allocated_mib=None if allocated is None else allocated.used / MIB,
        numa_memory=_numa_memory(query),
        application_graphics_mhz=graphics,
        application_memory_mhz=memory,
        default_application_graphics_mhz=default_graphics,
        default_application_memory_mhz=default_memory,
    )


def _processes(query: NvmlQuery) -> int | None:
    pids: set[int] = set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        names = (f"{kind}RunningProcesses_v{version}" for version in (3, 2))
        found = query.first("config.processes", *names)
        if found is None and kind == "Compute":
            return None
        pids.update(process.pid for process in found or ())
    return len(pids)


def _numa_memory(query: NvmlQuery) -> bool | None:
    mode = query.get("config.numa_memory", "AddressingMode")
    if mode is not None:
        return bool(mode == ATS)
    return True if query.get("config.numa_memory", "NumaNodeId") is not None else None  # drivers before 545

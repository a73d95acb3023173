"""Judges a GPU's configuration.

A corrupt InfoROM fails: the driver reports wrong checksums, the GPU no longer records ECC errors and remapped memory,
and NVIDIA's GPU Operator does not start on such a node (its troubleshooting page says to replace the GPU, DCGM to
flash the InfoROM). A person decides which of the two. Everything else warns: a GPU configured differently from others
of its model works, but slows down all GPUs that work with it.

The check gpupower judges persistence mode and power limits, gpuecc the ECC mode.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gpuconfig import GpuconfigParameters
from muster_checks.hardware.siblings import share_of_others
from muster_checks.nvidia.gpu import ComputeMode, Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU on this node reports its configuration"
HOST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO (include/linux/proc_ns.h): the first PID namespace of a kernel
LEAST_SHARE_OF_CLOCK = 0.995  # clocks come in steps of 7.5 MHz and more; T4s report 5000 for 5001 MHz

ClockValue = Callable[[Gpu], float | None]
CLOCKS: tuple[tuple[str, ClockValue, ClockValue], ...] = (
    (
        "graphics",
        lambda gpu: gpu.config.application_graphics_mhz,
        lambda gpu: gpu.config.default_application_graphics_mhz,
    ),
    (
        "memory",
        lambda gpu: gpu.config.application_memory_mhz,
        lambda gpu: gpu.config.default_application_memory_mhz,
    ),
)


def sees_all_processes(node: NodeView) -> bool:
    """Whether this process sees the processes of the whole node: the driver omits those outside the caller's PID
    namespace (os_find_ns_pid in NVIDIA's open kernel modules; older releases do not)."""
    try:
        return str(node.path("/proc/self/ns/pid").readlink()) == HOST_PIDS
    except (OSError, ValueError):
        return False


def counters(reading: GpuReading, sees_all: bool = True) -> dict[str, float]:
    """MiB in use on each GPU without a process; 0 while a process uses the GPU."""
    left = {gpu.component: _leftover(gpu) for gpu in reading.gpus if sees_all and not gpu.lost}
    return {component: mib for component, mib in left.items() if mib is not None}


def judge(
    reading: GpuReading, series: Mapping[str, CounterSeries] | None, limits: GpuconfigParameters, sees_all: bool = True
) -> list[Finding]:
    """series: leftover memory at each reading; None if there is only this reading."""
    odd_vbios = _unlike_most(reading, lambda gpu: gpu.vbios)
    odd_mode = _unlike_most(reading, lambda gpu: gpu.config.compute_mode)
    slow = _slow_clocks(reading, limits)

    def judge_one(gpu: Gpu) -> list[Finding]:
        findings = judge_unread(gpu, "config", "vbios", "mig")
        measured = _measurements(gpu, limits, sees_all)

        def add(verdict: Verdict, reason: str, message: str, fault_class: FaultClass = FaultClass.NONE) -> None:
            findings.append(gpu_finding(gpu, verdict, reason, message, measured, fault_class))

        config = gpu.config
        if config.inforom_valid is False:
            message = "the InfoROM is corrupt and records no memory errors: flash the InfoROM or replace the GPU"
            add(Verdict.FAIL, "InforomCorrupt", message, FaultClass.CONTACT)
        if gpu.component in odd_vbios:
            message = f"VBIOS {gpu.vbios}, other GPUs of this model have {odd_vbios[gpu.component]}: use one version"
            add(Verdict.WARN, "VbiosDiffers", message)
        if gpu.mig is not None and config.mig_pending is not None and gpu.mig != config.mig_pending:
            message = f"the next reset switches MIG mode {'on' if config.mig_pending else 'off'}"
            add(Verdict.WARN, "MigModePending", message, FaultClass.RESET)
        if config.compute_mode is ComputeMode.PROHIBITED:
            add(
                Verdict.WARN,
                "ComputeProhibited",
                "compute mode is prohibited, so no job can use the GPU: run nvidia-smi -c 0",
            )
        elif gpu.component in odd_mode:
            message = f"compute mode is {config.compute_mode}, other GPUs of this model have {odd_mode[gpu.component]}"
            add(Verdict.WARN, "ComputeModeDiffers", f"{message}: set it with nvidia-smi -c")
        if gpu.component in slow:
            add(Verdict.WARN, "LowApplicationClocks", f"{slow[gpu.component]}: reset them with nvidia-smi -rac")
        left = _leftover(gpu) if sees_all else None
        if left is not None and left > limits.max_idle_memory_mib and _lasts(gpu, series, limits):
            message = (
                f"{left:.0f} MiB in use without a process on the GPU, limit {limits.max_idle_memory_mib:g} MiB: "
                "look for processes that cannot end (state D or Z); if there are none, reset the GPU"
            )
            add(Verdict.WARN, "LeftoverMemory", message, FaultClass.RESET)
        if not findings and (gpu.vbios is not None or measured):
            add(Verdict.PASS, "Ok", f"VBIOS {gpu.vbios}, compute mode {config.compute_mode or 'unknown'}")
        return findings

    return judge_each(reading, judge_one, NOTHING)


def _leftover(gpu: Gpu) -> float | None:
    config = gpu.config
    if gpu.mig or config.numa_memory or config.processes is None:  # the kernel also uses the memory of a NUMA node
        return None
    return 0.0 if config.processes else config.memory_allocated_mib


def _lasts(gpu: Gpu, series: Mapping[str, CounterSeries] | None, limits: GpuconfigParameters) -> bool:
    """Whether two consecutive readings show it: while a process starts or ends, its memory has no owner for a
    moment."""
    if series is None:
        return True
    seen = series.get(gpu.component)
    latest = [] if seen is None else [value for _, value in seen.points[-2:]]
    return len(latest) == 2 and min(latest) > limits.max_idle_memory_mib


def _unlike_most(reading: GpuReading, value_of: Callable[[Gpu], str | None]) -> dict[str, str]:
    """For each GPU whose value differs from that of more than half of its model: their value, by component."""
    odd: dict[str, str] = {}
    for equals in _equals(reading):
        values = {gpu.component: value for gpu in equals if (value := value_of(gpu)) is not None}
        counts = Counter(values.values()).most_common()
        most = [value for value, count in counts if 2 * count > len(values)]
        for component, own in values.items():
            if own not in most:
                others = most or [value for value, _ in counts if value != own]
                odd[component] = "/".join(others[:3])
    return odd


def _slow_clocks(reading: GpuReading, limits: GpuconfigParameters) -> dict[str, str]:
    """By component: the application clocks below the limit, the default, or those of other GPUs of the model."""
    slow: dict[str, list[str]] = {}
    least = {"graphics": limits.min_application_graphics_mhz, "memory": limits.min_application_memory_mhz}
    for equals in _equals(reading):
        for name, clock, default in CLOCKS:
            clocks = {gpu.component: mhz for gpu in equals if (mhz := clock(gpu)) is not None}
            shares = share_of_others(clocks, least=1)
            for gpu in equals:
                mhz, usual, limit = clocks.get(gpu.component), default(gpu), least[name]
                if mhz is None:
                    continue
                if limit is not None:
                    why = f"limit {limit:g}" if mhz < limit else ""
                elif usual is not None and mhz < usual * LEAST_SHARE_OF_CLOCK:
                    why = f"default {usual:g}"
                else:
                    share = shares.get(gpu.component, 1.0)
                    why = f"{share:.0%} of other GPUs of this model" if share < LEAST_SHARE_OF_CLOCK else ""
                if why:
                    slow.setdefault(gpu.component, []).append(f"{name} {mhz:g} MHz ({why})")
    return {component: f"low application clocks: {', '.join(why)}" for component, why in slow.items()}


def _equals(reading: GpuReading) -> Sequence[Sequence[Gpu]]:
    by_name: dict[str, list[Gpu]] = {}
    for gpu in reading.gpus:
        if not gpu.lost and gpu.name is not None:
            by_name.setdefault(gpu.name, []).append(gpu)
    return list(by_name.values())


def _measurements(gpu: Gpu, limits: GpuconfigParameters, sees_all: bool) -> list[Measurement]:
    config = gpu.config
    values: list[tuple[str, float | None, str, float | None]] = [
        ("processes", config.processes if sees_all else None, "", None),
        ("leftover_memory", _leftover(gpu) if sees_all else None, "MiB", limits.max_idle_memory_mib),
        ("application_graphics", config.application_graphics_mhz, "MHz", limits.min_application_graphics_mhz),
        ("application_memory", config.application_memory_mhz, "MHz", limits.min_application_memory_mhz),
    ]
    return [Measurement(name, value, unit, threshold) for name, value, unit, threshold in values if value is not None]

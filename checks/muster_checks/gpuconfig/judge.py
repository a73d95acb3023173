"""What a GPU's configuration comes to.

A corrupt InfoROM fails: its checksums are wrong by the driver's own word, it keeps no record of ECC errors and of
remapped memory any more, and NVIDIA's GPU Operator does not start on such a node (its troubleshooting page: replace the
GPU; DCGM: flash the InfoROM). A person decides which of the two. All else warns: a GPU that is set up otherwise than
its equals works, and makes all that work with it wait.

Persistence mode and power limits are for gpupower, ECC mode is for gpuecc.
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

NOTHING = "no GPU here tells how it is set up"
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
    """Whether this process sees those of the whole node: the driver leaves out what is not in the asker's PID namespace
    (os_find_ns_pid in NVIDIA's open kernel modules; older releases do not)."""
    try:
        return str(node.path("/proc/self/ns/pid").readlink()) == HOST_PIDS
    except (OSError, ValueError):
        return False


def counters(reading: GpuReading, sees_all: bool = True) -> dict[str, float]:
    """MiB of each GPU that no process accounts for; 0 while there is one."""
    left = {gpu.component: _leftover(gpu) for gpu in reading.gpus if sees_all and not gpu.lost}
    return {component: mib for component, mib in left.items() if mib is not None}


def judge(
    reading: GpuReading, series: Mapping[str, CounterSeries] | None, limits: GpuconfigParameters, sees_all: bool = True
) -> list[Finding]:
    """series: leftover memory at each reading; None where there is but this one."""
    odd_vbios = _unlike_most(reading, lambda gpu: gpu.vbios)
    odd_mode = _unlike_most(reading, lambda gpu: gpu.config.compute_mode)
    slow = _slow_clocks(reading, limits)

    def judge_one(gpu: Gpu) -> list[Finding]:
        findings = judge_unread(gpu, "config", "vbios", "mig")
        measured = _measurements(gpu, limits, sees_all)

        def say(verdict: Verdict, reason: str, message: str, fault_class: FaultClass = FaultClass.NONE) -> None:
            findings.append(gpu_finding(gpu, verdict, reason, message, measured, fault_class))

        config = gpu.config
        if config.inforom_valid is False:
            message = "its InfoROM is corrupt and records no memory errors: have it flashed, or the GPU replaced"
            say(Verdict.FAIL, "InforomCorrupt", message, FaultClass.CONTACT)
        if gpu.component in odd_vbios:
            message = f"VBIOS {gpu.vbios}, its equals have {odd_vbios[gpu.component]}: bring them to one version"
            say(Verdict.WARN, "VbiosDiffers", message)
        if gpu.mig is not None and config.mig_pending is not None and gpu.mig != config.mig_pending:
            message = f"MIG mode will be switched {'on' if config.mig_pending else 'off'} by the next reset"
            say(Verdict.WARN, "MigModePending", message, FaultClass.RESET)
        if config.compute_mode is ComputeMode.PROHIBITED:
            say(Verdict.WARN, "ComputeProhibited", "compute mode is prohibited, no job can use it: nvidia-smi -c 0")
        elif gpu.component in odd_mode:
            message = f"compute mode is {config.compute_mode}, {odd_mode[gpu.component]} on its equals"
            say(Verdict.WARN, "ComputeModeDiffers", f"{message}: nvidia-smi -c")
        if gpu.component in slow:
            say(Verdict.WARN, "LowApplicationClocks", f"{slow[gpu.component]}: nvidia-smi -rac resets them")
        left = _leftover(gpu) if sees_all else None
        if left is not None and left > limits.max_idle_memory_mib and _lasts(gpu, series, limits):
            message = (
                f"{left:.0f} MiB in use and no process on it, limit {limits.max_idle_memory_mib:g} MiB: "
                "look for processes that cannot die (state D or Z), else reset the GPU"
            )
            say(Verdict.WARN, "LeftoverMemory", message, FaultClass.RESET)
        if not findings and (gpu.vbios is not None or measured):
            say(Verdict.PASS, "Ok", f"VBIOS {gpu.vbios}, compute mode {config.compute_mode or 'not told'}")
        return findings

    return judge_each(reading, judge_one, NOTHING)


def _leftover(gpu: Gpu) -> float | None:
    config = gpu.config
    if gpu.mig or config.numa_memory or config.processes is None:  # the kernel itself uses memory that is a NUMA node
        return None
    return 0.0 if config.processes else config.memory_allocated_mib


def _lasts(gpu: Gpu, series: Mapping[str, CounterSeries] | None, limits: GpuconfigParameters) -> bool:
    """Whether it was seen twice running: memory of a process that starts or ends just now is nobody's for a moment."""
    if series is None:
        return True
    seen = series.get(gpu.component)
    latest = [] if seen is None else [value for _, value in seen.points[-2:]]
    return len(latest) == 2 and min(latest) > limits.max_idle_memory_mib


def _unlike_most(reading: GpuReading, told: Callable[[Gpu], str | None]) -> dict[str, str]:
    """By component, what its equals say, for each GPU that does not say what more than half of them do."""
    odd: dict[str, str] = {}
    for equals in _equals(reading):
        said = {gpu.component: value for gpu in equals if (value := told(gpu)) is not None}
        counts = Counter(said.values()).most_common()
        most = [value for value, count in counts if 2 * count > len(said)]
        for component, own in said.items():
            if own not in most:
                others = most or [value for value, _ in counts if value != own]
                odd[component] = "/".join(others[:3])
    return odd


def _slow_clocks(reading: GpuReading, limits: GpuconfigParameters) -> dict[str, str]:
    """By component, which application clock is below the limit, its default, or that of its equals."""
    slow: dict[str, list[str]] = {}
    least = {"graphics": limits.min_application_graphics_mhz, "memory": limits.min_application_memory_mhz}
    for equals in _equals(reading):
        for name, clock, default in CLOCKS:
            told = {gpu.component: mhz for gpu in equals if (mhz := clock(gpu)) is not None}
            shares = share_of_others(told, least=1)
            for gpu in equals:
                mhz, usual, limit = told.get(gpu.component), default(gpu), least[name]
                if mhz is None:
                    continue
                if limit is not None:
                    why = f"limit {limit:g}" if mhz < limit else ""
                elif usual is not None and mhz < usual * LEAST_SHARE_OF_CLOCK:
                    why = f"default {usual:g}"
                else:
                    share = shares.get(gpu.component, 1.0)
                    why = f"{share:.0%} of its equals'" if share < LEAST_SHARE_OF_CLOCK else ""
                if why:
                    slow.setdefault(gpu.component, []).append(f"{name} {mhz:g} MHz ({why})")
    return {component: f"application clocks are set low: {', '.join(why)}" for component, why in slow.items()}


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

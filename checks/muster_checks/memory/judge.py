"""Judges the readings of memory.

Corrected errors are judged by their rate: each was repaired, but many predict worse. An uncorrected error lost data,
whenever it happened during this boot. Low memory is caused by the jobs, so it only warns.
"""

from collections.abc import Mapping, Sequence

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.memory import MemoryParameters
from muster_checks.memory.edac import Dimm
from muster_checks.memory.meminfo import HostMemory, NumaMemory

DAY_S = 86_400.0
MIB, GIB = 1 << 10, 1 << 20  # in KiB
# Equal sockets differ by the kernel's own reservations (a crash kernel takes up to some GiB of one node); the smallest
# DIMM of a server holds 8 GiB, and one of sixteen is 6 % of its socket.
NODE_SHARE, NODE_GAP_KIB = 0.95, 8 * GIB


def counter_name(dimm: Dimm) -> str:
    return f"{dimm.place}.corrected"


def judge_dimms(dimms: Sequence[Dimm], series: Mapping[str, CounterSeries], limits: MemoryParameters) -> list[Finding]:
    findings = [found for dimm in dimms if (found := _judge_dimm(dimm, series, limits.max_corrected_per_day))]
    present = sum(dimm.placed for dimm in dimms)
    if limits.min_dimms is None or present >= limits.min_dimms:
        return findings
    if not present:
        message = f"no EDAC driver shows any DIMM, so it is unknown whether all {limits.min_dimms} are there"
        return [*findings, Finding(component="host", verdict=Verdict.UNKNOWN, reason="NoEdac", message=message)]
    return [
        *findings,
        Finding(
            component="host",
            verdict=Verdict.FAIL,
            reason="DimmMissing",
            fault_class=FaultClass.CONTACT,
            message=f"{present} DIMMs, expected {limits.min_dimms}: one is dead, disabled by the firmware or not "
            "seated; the BMC's log names it",
            measurements=(Measurement("dimms", present, "", limits.min_dimms),),
        ),
    ]


def judge_host_memory(vitals: HostMemory, limits: MemoryParameters) -> list[Finding]:
    findings = [
        *_missing(vitals, limits),
        *_numa(vitals.nodes, vitals.total),
        *_poisoned(vitals),
        *_short(vitals, limits),
    ]
    return findings or [
        Finding(component="host", verdict=Verdict.PASS, reason="Ok", message="", measurements=_measured(vitals, limits))
    ]


def _judge_dimm(dimm: Dimm, series: Mapping[str, CounterSeries], per_day: float) -> Finding | None:
    component = f"dimm/{dimm.label}"
    if dimm.corrected is None or dimm.uncorrected is None:
        return Finding(
            component=component,
            verdict=Verdict.UNKNOWN,
            reason="NotReadable",
            message=f"{dimm.place}: cannot read the error counters",
        )
    corrected = _within_a_day(dimm, dimm.corrected, series)
    measured = (
        Measurement("uncorrected", dimm.uncorrected, "errors", 0),
        Measurement("corrected_per_day", corrected, "errors", per_day),
        Measurement("corrected", dimm.corrected, "errors"),
    )
    if dimm.uncorrected > 0:
        verdict, reason = Verdict.FAIL, "UncorrectedErrors"
        asks = FaultClass.REPLACE if dimm.placed else FaultClass.CONTACT
        what = f"{dimm.uncorrected} uncorrected memory errors since the driver was loaded, with data loss: " + (
            "replace the DIMM" if dimm.placed else "the driver does not know which DIMM it is"
        )
    elif corrected > per_day:
        verdict, reason, asks = Verdict.WARN, "CorrectedErrors", FaultClass.CONTACT
        what = f"{corrected:g} corrected memory errors within a day (limit {per_day:g}): reseat or replace it soon"
    elif dimm.placed:
        return Finding(component=component, verdict=Verdict.PASS, reason="Ok", message="", measurements=measured)
    else:
        return None
    return Finding(
        component=component,
        verdict=verdict,
        reason=reason,
        fault_class=asks,
        message=f"{dimm.place}: {what}",
        measurements=measured,
    )


def _within_a_day(dimm: Dimm, height: int, series: Mapping[str, CounterSeries]) -> float:
    # counters younger than a day: all their errors count, observed or not
    if dimm.age_s is not None and dimm.age_s <= DAY_S:
        return float(height)
    readings = series.get(counter_name(dimm))
    return readings.rise(DAY_S).amount if readings else 0.0


def _missing(vitals: HostMemory, limits: MemoryParameters) -> list[Finding]:
    findings = []
    total = vitals.total / GIB
    if limits.min_total_gib is not None and total < limits.min_total_gib:
        findings.append(
            _on_host(
                Verdict.FAIL,
                "MemoryMissing",
                f"{total:.1f} GiB of memory, expected {limits.min_total_gib:g}: look for a DIMM that the firmware "
                "disabled",
                FaultClass.CONTACT,
                Measurement("total", total, "GiB", limits.min_total_gib),
            )
        )
    if limits.min_hugepages_mib is None:
        return findings
    if vitals.huge is None:
        findings.append(_on_host(Verdict.UNKNOWN, "NotReadable", "the kernel does not report its huge pages"))
    elif vitals.huge / MIB < limits.min_hugepages_mib:
        findings.append(
            _on_host(
                Verdict.WARN,
                "HugePagesMissing",
                f"{vitals.huge / MIB:.0f} MiB of huge pages, expected {limits.min_hugepages_mib}: memory was too "
                "fragmented when they were requested; reserve them at boot with hugepages=",
                FaultClass.REBOOT,
                Measurement("hugepages", vitals.huge / MIB, "MiB", limits.min_hugepages_mib),
            )
        )
    return findings


def _numa(nodes: Sequence[NumaMemory], total_kib: int) -> list[Finding]:
    # nodes without CPUs are accelerator memory or expanders, which may differ in size
    sized = {numa.number: numa.memory_kib for numa in nodes if numa.has_cpus and numa.memory_kib is not None}
    most = max(sized.values(), default=0)
    findings = []
    if most and (empty := [number for number, kib in sized.items() if not kib]):
        findings.append(
            _on_host(
                Verdict.WARN,
                "NumaNodeEmpty",
                f"NUMA node {_join(empty)} has CPUs but no memory: its jobs access memory over the socket link",
                FaultClass.CONTACT,
            )
        )
    small = [number for number, kib in sized.items() if 0 < kib < NODE_SHARE * most and most - kib >= NODE_GAP_KIB]
    # in guests with hot-plugged memory the nodes' sum is below /proc/meminfo: observed with 7.3 of 23.5 GiB
    adds_up = sum(numa.memory_kib or 0 for numa in nodes) > 0.98 * total_kib
    if small and adds_up:
        least = min(sized[number] for number in small)
        findings.append(
            _on_host(
                Verdict.WARN,
                "NumaNodeSmall",
                f"NUMA node {_join(small)} has {least / GIB:.0f} GiB, another one {most / GIB:.0f} GiB: a DIMM may be "
                "missing or disabled",
                FaultClass.CONTACT,
                Measurement("smallest_node", least / GIB, "GiB", most / GIB),
            )
        )
    return findings


def _poisoned(vitals: HostMemory) -> list[Finding]:
    in_use = sum(numa.in_use or 0 for numa in vitals.nodes)
    if in_use:
        return [
            _on_host(
                Verdict.WARN,
                "PoisonInUse",
                f"{in_use} bad memory pages could not be taken out of use, and reading one crashes a process or the "
                "kernel: reboot",
                FaultClass.REBOOT,
                Measurement("pages_in_use", in_use, "pages", 0),
            )
        ]
    if vitals.corrupted:
        return [
            _on_host(
                Verdict.WARN,
                "MemoryPoisoned",
                f"{vitals.corrupted} KiB of bad memory taken out of use since boot: the kernel log names the DIMM",
                FaultClass.CONTACT,
                Measurement("corrupted", vitals.corrupted, "KiB", 0),
            )
        ]
    return []


def _short(vitals: HostMemory, limits: MemoryParameters) -> list[Finding]:
    findings = []
    if vitals.available is not None and vitals.available / MIB < limits.min_available_mib:
        free = vitals.available / MIB
        findings.append(
            _on_host(
                Verdict.WARN,
                "MemoryLow",
                f"{free:.0f} MiB of memory available (limit {limits.min_available_mib:g}): the kubelet evicts pods, or "
                "the kernel kills processes",
                FaultClass.NONE,
                Measurement("available", free, "MiB", limits.min_available_mib),
            )
        )
    if vitals.pressure_percent is not None and vitals.pressure_percent > limits.max_pressure_percent:
        findings.append(
            _on_host(
                Verdict.WARN,
                "MemoryPressure",
                f"every task waited for memory for {vitals.pressure_percent:.0f} % of the last minute (limit "
                f"{limits.max_pressure_percent:g} %): the node is thrashing",
                FaultClass.NONE,
                Measurement("pressure", vitals.pressure_percent, "%", limits.max_pressure_percent),
            )
        )
    if not limits.allow_swap and vitals.swap_total:
        message = f"{vitals.swap_total / GIB:.1f} GiB of swap are on, but allow_swap is false: run swapoff -a"
        findings.append(_on_host(Verdict.WARN, "SwapOn", message))
    return findings


def _measured(vitals: HostMemory, limits: MemoryParameters) -> tuple[Measurement, ...]:
    swap = None
    if vitals.swap_total is not None and vitals.swap_free is not None:
        swap = (vitals.swap_total - vitals.swap_free) / GIB
    rows: list[tuple[str, float | None, str, float | None]] = [
        ("total", vitals.total / GIB, "GiB", limits.min_total_gib),
        ("available", None if vitals.available is None else vitals.available / GIB, "GiB", None),
        ("pressure", vitals.pressure_percent, "%", limits.max_pressure_percent),
        ("corrupted", vitals.corrupted, "KiB", 0),
        ("swap_used", swap, "GiB", None),
        ("hugepages", None if vitals.huge is None else vitals.huge / MIB, "MiB", limits.min_hugepages_mib),
        ("oom_kills", vitals.oom_kills, "since boot", None),
    ]
    return tuple(Measurement(name, value, unit, limit) for name, value, unit, limit in rows if value is not None)


def _on_host(
    verdict: Verdict, reason: str, message: str, asks: FaultClass = FaultClass.NONE, *measured: Measurement
) -> Finding:
    return Finding(
        component="host", verdict=verdict, reason=reason, message=message, fault_class=asks, measurements=measured
    )


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))

"""Judges the readings of the CPUs.

A slow CPU, or one that reports errors, is a WARN: the node still computes correctly. Only missing CPUs that an operator
expects are a FAIL.
"""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.counter_history import CounterSeries, Rise
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.cpu import CpuParameters
from muster_checks.cpu.counters import Throttling
from muster_checks.cpu.process_states import Processes
from muster_checks.cpu.topology import CpufreqPolicy, Topology

DAY_S, QUARTER_S = 86_400.0, 900.0
MIN_THROTTLED_MS = 250.0  # a first run watches for about a second: less than this is not yet a problem
MAX_EVENTS_PER_MINUTE = 0.6  # if the kernel does not count time; gpud's limit for hardware slowdowns of GPUs
# With these drivers "powersave" sets the clock by load; with any other it means the lowest clock
# (Documentation/admin-guide/pm: intel_pstate, amd-pstate, cpufreq)
DYNAMIC_POWERSAVE = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
APART_S = 30.0  # readings closer than this, such as the two of a first run, count as one
BUSY_LOAD = 0.5  # running tasks per CPU: at this load at least one CPU runs above its idle clock


class CpuReading(msgspec.Struct, frozen=True):
    """Everything one run reads. interrupts: None if they cannot be read."""

    topology: Topology
    throttling: tuple[Throttling, ...]
    interrupts: Mapping[str, int] | None
    processes: Processes

    def counters(self) -> dict[str, float]:
        values: dict[str, float] = {"blocked": self.processes.blocked}
        for place in self.throttling:
            values[f"{place.name}.events"] = place.events
            if place.ms is not None:
                values[f"{place.name}.ms"] = place.ms
        return values | dict(self.interrupts or {})


def judge(
    reading: CpuReading, series: Mapping[str, CounterSeries], uptime_s: float, limits: CpuParameters
) -> list[Finding]:
    """``series``: by the names of :meth:`CpuReading.counters`; ``uptime_s``: by the clock of the series."""
    topology, processes = reading.topology, reading.processes
    recent = {name: _recent(name, count, series, uptime_s) for name, count in (reading.interrupts or {}).items()}
    cpus = len(topology.online or ()) or 1
    bad = [
        *_missing(topology, limits),
        *_governor(topology.policies, limits.governor),
        *_slow(topology, processes, cpus, limits),
        *_throttled(reading.throttling, series, limits.max_throttled_percent),
        *_errors(recent, limits.max_corrected_per_day),
        *_stuck(processes, series, cpus, limits),
    ]
    return bad or [
        Finding(
            component="host",
            verdict=Verdict.PASS,
            reason="Ok",
            message="",
            measurements=_measured(topology, processes, recent, cpus, limits),
        )
    ]


def _missing(topology: Topology, limits: CpuParameters) -> list[Finding]:
    present, online = topology.present, topology.online
    if present is None or online is None:
        return [
            _finding(Verdict.UNKNOWN, "NotReadable", "the kernel does not list its CPUs under /sys/devices/system/cpu")
        ]
    findings = []
    if limits.min_cpus is not None and len(online) < limits.min_cpus:
        findings.append(
            _finding(
                Verdict.FAIL,
                "CpusMissing",
                f"{len(online)} CPUs are online, expected {limits.min_cpus}: a socket is dead or disabled, or "
                "firmware settings changed (SMT, cores)",
                FaultClass.CONTACT,
                Measurement("online", len(online), "CPUs", limits.min_cpus),
            )
        )
    offline = len(present - online)
    # with SMT off, the second thread of each core stays present and is never online
    if offline and not (topology.smt_off and offline <= len(present) / 2):
        findings.append(
            _finding(
                Verdict.WARN,
                "CpusOffline",
                f"{offline} of {len(present)} CPUs are offline (first: CPU {min(present - online)}): an operator or "
                "the kernel disabled them",
                FaultClass.REBOOT,
                Measurement("offline", offline, "CPUs", 0),
            )
        )
    if limits.min_numa_nodes is not None and topology.numa_nodes < limits.min_numa_nodes:
        findings.append(
            _finding(
                Verdict.FAIL,
                "NumaNodesMissing",
                f"{topology.numa_nodes} NUMA nodes, expected {limits.min_numa_nodes}: a socket is missing, or the "
                "firmware's NUMA setting (NPS, SNC) changed",
                FaultClass.CONTACT,
                Measurement("numa_nodes", topology.numa_nodes, "", limits.min_numa_nodes),
            )
        )
    return findings


def _governor(policies: Sequence[CpufreqPolicy], expected: str) -> list[Finding]:
    if expected:
        wrong = [policy for policy in policies if policy.governor != expected]
        what = f"should have the governor {expected}"
    else:
        wrong = [p for p in policies if p.governor == "powersave" and p.driver not in DYNAMIC_POWERSAVE]
        what = "run at their lowest clock because of the governor powersave"
    if not wrong:
        return []
    found = wrong[0].governor or "unreadable"
    message = f"{len(wrong)} of {len(policies)} clock domains {what} (found: {found}, driver {wrong[0].driver or '?'})"
    return [_finding(Verdict.WARN, "Governor", message)]


def _slow(topology: Topology, processes: Processes, cpus: int, limits: CpuParameters) -> list[Finding]:
    highest = max((policy.max_mhz for policy in topology.policies if policy.max_mhz is not None), default=None)
    least = limits.min_frequency_mhz or (highest / 2 if highest else None)
    fastest = topology.fastest_mhz
    # an idle CPU lowers its clock; the load average also counts tasks that wait for I/O
    if least is None or fastest is None or fastest >= least or _running(processes) < BUSY_LOAD * cpus:
        return []
    return [
        _finding(
            Verdict.WARN,
            "SlowClock",
            f"under load the fastest CPU runs at {fastest:.0f} MHz (expected at least {least:.0f}): check the "
            "BMC's log for a power cap, a failed power supply or PROCHOT",
            FaultClass.CONTACT,
            Measurement("fastest", fastest, "MHz", least),
        )
    ]


def _throttled(
    places: Sequence[Throttling], series: Mapping[str, CounterSeries], limit_percent: float
) -> list[Finding]:
    worst, sockets = 0.0, set()
    for place in places:
        rise = _rise(series, f"{place.name}.{'events' if place.ms is None else 'ms'}", QUARTER_S)
        if place.ms is None:
            percent = 0.0
            hot = rise.amount > 1 and rise.per(60.0) > MAX_EVENTS_PER_MINUTE
        else:
            percent = min(100.0, rise.per(1.0) / 10)  # ms a second
            hot = percent >= limit_percent and rise.amount >= MIN_THROTTLED_MS
        if hot:
            sockets.add(place.socket)
            worst = max(worst, percent)
    if not sockets:
        return []
    share = f"for {worst:.0f} % of the time (limit {limit_percent:g} %)" if worst else "repeatedly"
    named = ", ".join(map(str, sorted(sockets)))
    return [
        _finding(
            Verdict.WARN,
            "ThermalThrottle",
            f"socket {named} overheated and was throttled {share}: check fans, inlet temperature and heat sinks",
            FaultClass.CONTACT,
            Measurement("throttled", worst, "%", limit_percent),
        )
    ]


def _errors(recent: Mapping[str, float], corrected_per_day: float) -> list[Finding]:
    rows = [
        ("MCE", "MachineCheckException", 0.0, "machine check exceptions, survived by the machine but with data loss"),
        ("DFR", "DeferredErrors", 0.0, "deferred errors: memory holds corrupt data; a process that reads it crashes"),
        ("THR", "CorrectedMachineChecks", corrected_per_day, "corrected machine checks"),
    ]
    return [
        _finding(
            Verdict.WARN,
            reason,
            f"{recent[name]:g} {what} (within a day, limit {limit:g}); the kernel log or rasdaemon names the part",
            FaultClass.CONTACT,
            Measurement(name.lower(), recent[name], "events", limit),
        )
        for name, reason, limit, what in rows
        if recent.get(name, 0.0) > limit
    ]


def _stuck(
    processes: Processes, series: Mapping[str, CounterSeries], cpus: int, limits: CpuParameters
) -> list[Finding]:
    findings = []
    if processes.zombies > limits.max_zombies_per_cpu * cpus:
        findings.append(
            _finding(
                Verdict.WARN,
                "Zombies",
                f"{processes.zombies} zombie processes on {cpus} CPUs (limit {limits.max_zombies_per_cpu:g} per CPU): "
                "restart the parent that does not reap them (ps -eo ppid,stat | grep Z)",
                FaultClass.RESTART_APP,
                Measurement("zombies", processes.zombies, "processes", limits.max_zombies_per_cpu * cpus),
            )
        )
    # a burst of writes blocks many processes for a moment; those still blocked at the next run wait for dead storage
    points = series["blocked"].points if "blocked" in series else ()
    before = [value for at, value in points if at <= points[-1][0] - APART_S]
    if before and min(before[-1], processes.blocked) > limits.max_blocked_per_cpu * cpus:
        findings.append(
            _finding(
                Verdict.WARN,
                "BlockedProcesses",
                f"{processes.blocked} processes are in uninterruptible sleep on {cpus} CPUs (limit "
                f"{limits.max_blocked_per_cpu:g} per CPU): a disk or network file system does not respond",
                FaultClass.REBOOT,
                Measurement("blocked", processes.blocked, "processes", limits.max_blocked_per_cpu * cpus),
            )
        )
    return findings


def _measured(
    topology: Topology, processes: Processes, recent: Mapping[str, float], cpus: int, limits: CpuParameters
) -> tuple[Measurement, ...]:
    rows: list[tuple[str, float | None, str, float | None]] = [
        ("online", cpus, "CPUs", limits.min_cpus),
        ("fastest", topology.fastest_mhz, "MHz", None),
        ("load", processes.load, "", None),
        ("pressure", processes.pressure_percent, "%", None),
        ("processes", processes.total, "", None),
        ("zombies", processes.zombies, "processes", limits.max_zombies_per_cpu * cpus),
        ("blocked", processes.blocked, "processes", limits.max_blocked_per_cpu * cpus),
        *((name.lower(), count, "events", None) for name, count in recent.items()),
    ]
    return tuple(Measurement(name, value, unit, limit) for name, value, unit, limit in rows if value is not None)


def _recent(name: str, count: int, series: Mapping[str, CounterSeries], uptime_s: float) -> float:
    # these counters start at 0 at boot: within the first day they show all events, observed or not
    return float(count) if uptime_s <= DAY_S else _rise(series, name, DAY_S).amount


def _rise(series: Mapping[str, CounterSeries], name: str, window_s: float) -> Rise:
    return series[name].rise(window_s) if name in series else Rise(0.0, 0.0)


def _running(processes: Processes) -> float:
    return (processes.load or 0.0) - processes.blocked


def _finding(
    verdict: Verdict, reason: str, message: str, asks: FaultClass = FaultClass.NONE, *measured: Measurement
) -> Finding:
    return Finding(
        component="host", verdict=verdict, reason=reason, message=message, fault_class=asks, measurements=measured
    )

"""Judges what limits a GPU's clocks.

Idle clocks, application clocks, sync boost and the software power cap are normal. A hardware slowdown is a fault: it
halves the clocks or worse when the GPU is too hot or the system asserts the power brake (NVML API Reference Guide,
nvmlClocksEventReasons). It may also appear briefly while clocks change, so one observation warns. It fails after two
consecutive observations, or if the driver's own time counter shows too large a share of the last ten minutes.
"""

from collections.abc import Mapping

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gpupower import LEAST_WATCHED_S, WINDOW_S, GpupowerParameters
from muster_checks.hardware.siblings import share_of_others
from muster_checks.nvidia.gpu import ClocksEvent, Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU on this node reports what limits its clocks"
# the most specific first: the driver sets the general bit together with its cause
HARDWARE = {
    ClocksEvent.HW_POWER_BRAKE: ("HwPowerBrake", "the power brake", "check power supplies and their limits"),
    ClocksEvent.HW_THERMAL: ("HwThermalSlowdown", "heat", "check fans, airflow and coolant"),
    ClocksEvent.HW_SLOWDOWN: ("HwSlowdown", "the hardware", "check power supplies and cooling"),
}
LEAST_SHARE_OF_LIMIT = 0.95  # power limits are whole watts: 5 % below other GPUs of the model is not rounding
LEAST_REPORTED_SHARE = 0.01


def counters(reading: GpuReading) -> dict[str, float]:
    """By GPU and event: whether it is active (1 or 0), and for how many seconds it was since the driver was loaded."""
    values: dict[str, float] = {}
    for gpu in reading.gpus:
        if gpu.lost or gpu.clocks.events is None:
            continue
        for event in HARDWARE:
            values[f"{gpu.component} on {event}"] = float(event in gpu.clocks.events)
        for event, seconds in gpu.clocks.held_s.items():
            values[f"{gpu.component} held {event}"] = seconds
    return values


def judge(reading: GpuReading, series: Mapping[str, CounterSeries], limits: GpupowerParameters) -> list[Finding]:
    shares = _shares_of_limit(reading)
    return judge_each(reading, lambda gpu: _judge(gpu, series, limits, shares.get(gpu.component)), NOTHING)


def _judge(
    gpu: Gpu, series: Mapping[str, CounterSeries], limits: GpupowerParameters, share_of_limit: float | None
) -> list[Finding]:
    measured = _measurements(gpu, series, limits)
    findings = [*judge_unread(gpu, "clocks.events", "power"), *_slowdown(gpu, series, limits, measured)]
    events = gpu.clocks.events or ()
    if ClocksEvent.SW_THERMAL in events:
        message = "the driver reduces the clocks because the GPU or its memory is too hot; see the check gputemp"
        findings.append(gpu_finding(gpu, Verdict.WARN, "SwThermalSlowdown", message, measured))
    if share_of_limit is not None and share_of_limit < LEAST_SHARE_OF_LIMIT:
        message = f"power limit of {gpu.power.limit_w:g} W is {share_of_limit:.0%} of that of other GPUs of this model"
        findings.append(gpu_finding(gpu, Verdict.WARN, "LowPowerLimit", message, measured))
    if gpu.persistence is False:
        message = "persistence mode is off, so the first use of an idle GPU is slow: enable nvidia-persistenced"
        findings.append(gpu_finding(gpu, Verdict.WARN, "PersistenceOff", message, measured))
    if not findings and gpu.clocks.events is not None:
        held = ", ".join(events) or "nothing"
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", f"clocks limited by: {held}", measured))
    return findings


def _slowdown(
    gpu: Gpu, series: Mapping[str, CounterSeries], limits: GpupowerParameters, measured: list[Measurement]
) -> list[Finding]:
    for event, (reason, cause, advice) in HARDWARE.items():
        now = event in (gpu.clocks.events or ())
        share = _share(series.get(f"{gpu.component} held {event}"))
        if share is not None and share > limits.max_slowdown_share:
            message = (
                f"slowed down by {cause} for {share:.0%} of the last 10 minutes, limit {limits.max_slowdown_share:.0%}"
            )
        elif now and _twice(series.get(f"{gpu.component} on {event}")):
            message = f"slowed down by {cause} in two consecutive readings"
        elif now or (share is not None and share > LEAST_REPORTED_SHARE):
            message = f"slowed down by {cause} in one reading: {advice} if it recurs"
            return [gpu_finding(gpu, Verdict.WARN, reason, message, measured)]
        else:
            continue
        return [gpu_finding(gpu, Verdict.FAIL, reason, f"{message}: {advice}", measured, FaultClass.CONTACT)]
    return []


def _twice(series: CounterSeries | None) -> bool:
    return series is not None and [value for _, value in series.points[-2:]] == [1.0, 1.0]


def _share(series: CounterSeries | None) -> float | None:
    """Increase of a counter of seconds as a share of the last ten minutes; None if observed for too short a time."""
    if series is None:
        return None
    rise = series.rise(WINDOW_S)
    return min(rise.per(1.0), 1.0) if rise.over_s >= LEAST_WATCHED_S else None


def _shares_of_limit(reading: GpuReading) -> dict[str, float]:
    shares: dict[str, float] = {}
    for name in {gpu.name for gpu in reading.gpus}:
        equals = [gpu for gpu in reading.gpus if gpu.name == name and not gpu.lost]
        shares |= share_of_others({gpu.component: gpu.power.limit_w for gpu in equals if gpu.power.limit_w is not None})
    return shares


def _measurements(gpu: Gpu, series: Mapping[str, CounterSeries], limits: GpupowerParameters) -> list[Measurement]:
    shares = {event: _share(series.get(f"{gpu.component} held {event}")) for event in gpu.clocks.held_s}
    values: list[tuple[str, float | None, str, float | None]] = [
        ("power", gpu.power.draw_w, "W", None),
        ("power_limit", gpu.power.limit_w, "W", None),
        *(
            (f"share_{event.replace('-', '_')}", share, "", limits.max_slowdown_share if event in HARDWARE else None)
            for event, share in shares.items()
        ),
    ]
    return [Measurement(name, value, unit, threshold) for name, value, unit, threshold in values if value is not None]

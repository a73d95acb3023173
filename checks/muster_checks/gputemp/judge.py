"""What temperatures mean: always against the GPU's own limits, never against a number for all models.

Since Ada the driver gives a margin (T.Limit) and the margins at which something happens: NVML API Reference Guide,
NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT (may begin to slow down in hardware) and SHUTDOWN_TLIMIT; before that degrees,
nvmlDeviceGetTemperatureThreshold.
"""

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gputemp import GputempParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading, Temperature
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU here tells its temperature"


def judge(reading: GpuReading, limits: GputempParameters) -> list[Finding]:
    return judge_each(reading, lambda gpu: _judge(gpu, limits), NOTHING)


def slowdown_margin(temperature: Temperature) -> float | None:
    """Degrees below the point at which the hardware slows the GPU down; None where the driver does not say."""
    if temperature.t_limit_c is not None and temperature.slowdown_t_limit_c is not None:
        return temperature.t_limit_c - temperature.slowdown_t_limit_c
    if temperature.gpu_c is not None and temperature.slowdown_c is not None:
        return temperature.slowdown_c - temperature.gpu_c
    return None


def memory_margin(temperature: Temperature) -> float | None:
    """Degrees below the memory's highest operating temperature."""
    if temperature.memory_c is None or temperature.memory_max_c is None:
        return None
    return temperature.memory_max_c - temperature.memory_c


def _judge(gpu: Gpu, limits: GputempParameters) -> list[Finding]:
    margin, memory = slowdown_margin(gpu.temperature), memory_margin(gpu.temperature)
    measured = _measurements(gpu, margin, memory, limits)
    findings = judge_unread(gpu, "temperature") if margin is None else []
    now = "" if gpu.temperature.gpu_c is None else f" at {gpu.temperature.gpu_c:g} °C"
    if margin is not None and margin <= 0:
        message = f"so hot{now} that it slows down: check fans, airflow and coolant"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "TooHot", message, measured, FaultClass.CONTACT))
    elif margin is not None and margin < limits.min_margin_c:
        message = f"{margin:g} degrees below its slowdown{now}, warns below {limits.min_margin_c:g}: check its cooling"
        findings.append(gpu_finding(gpu, Verdict.WARN, "Hot", message, measured))
    if memory is not None and memory < limits.min_margin_c:
        message = f"its memory is {memory:g} degrees below its limit, warns below {limits.min_margin_c:g}"
        findings.append(gpu_finding(gpu, Verdict.WARN, "MemoryHot", message, measured))
    if not findings and measured:
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", f"sound{now}", measured))
    return findings


def _measurements(gpu: Gpu, margin: float | None, memory: float | None, limits: GputempParameters) -> list[Measurement]:
    values: list[tuple[str, float | None, float | None]] = [
        ("temperature", gpu.temperature.gpu_c, None),
        ("slowdown_margin", margin, limits.min_margin_c),
        ("memory_temperature", gpu.temperature.memory_c, None),
        ("memory_margin", memory, limits.min_margin_c),
    ]
    return [Measurement(name, value, "°C", threshold) for name, value, threshold in values if value is not None]

"""Judges temperatures, always against the GPU's own limits and never against one number for all models.

Since Ada the driver reports a margin (T.Limit) and the margins at which something happens: NVML API Reference Guide,
NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT (hardware slowdown may begin) and SHUTDOWN_TLIMIT. Older drivers report degrees:
nvmlDeviceGetTemperatureThreshold.
"""

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gputemp import GputempParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading, Temperature
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU on this node reports its temperature"


def judge(reading: GpuReading, limits: GputempParameters) -> list[Finding]:
    return judge_each(reading, lambda gpu: _judge(gpu, limits), NOTHING)


def slowdown_margin(temperature: Temperature) -> float | None:
    """Degrees below the temperature at which the hardware slows the GPU down; None if the driver does not report it."""
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
        message = f"too hot{now}, so the hardware slows it down: check fans, airflow and coolant"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "TooHot", message, measured, FaultClass.CONTACT))
    elif margin is not None and margin < limits.min_margin_c:
        message = (
            f"{margin:g} degrees below the slowdown temperature{now}, limit {limits.min_margin_c:g}: check its cooling"
        )
        findings.append(gpu_finding(gpu, Verdict.WARN, "Hot", message, measured))
    if memory is not None and memory < limits.min_margin_c:
        message = f"memory is {memory:g} degrees below its temperature limit, limit {limits.min_margin_c:g}"
        findings.append(gpu_finding(gpu, Verdict.WARN, "MemoryHot", message, measured))
    if not findings and measured:
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", f"temperature is normal{now}", measured))
    return findings


def _measurements(gpu: Gpu, margin: float | None, memory: float | None, limits: GputempParameters) -> list[Measurement]:
    values: list[tuple[str, float | None, float | None]] = [
        ("temperature", gpu.temperature.gpu_c, None),
        ("slowdown_margin", margin, limits.min_margin_c),
        ("memory_temperature", gpu.temperature.memory_c, None),
        ("memory_margin", memory, limits.min_margin_c),
    ]
    return [Measurement(name, value, "°C", threshold) for name, value, threshold in values if value is not None]

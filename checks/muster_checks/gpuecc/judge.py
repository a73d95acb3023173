"""Judges ECC counts.

Volatile counts restart at 0 when the driver is loaded or the GPU is reset, so an uncorrectable error among them is
recent. Aggregate counts cover the GPU's lifetime and never decrease: they are reported, but not judged. Corrected
errors are harmless and judged only by their rate. The driver reports whether the GPU must be replaced (SRAM threshold,
unrepairable memory): NVIDIA GPU Memory Error Management, docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, RMA policy.
"""

from collections.abc import Mapping

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.gpuecc import CORRECTED_WINDOW_S, GpueccParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread

NOTHING = "no GPU on this node has ECC switched on"


def counters(reading: GpuReading) -> dict[str, float]:
    """Corrected errors since the driver was loaded, by GPU."""
    return {
        gpu.component: float(gpu.ecc.volatile.corrected)
        for gpu in reading.gpus
        if not gpu.lost and gpu.ecc.volatile.corrected is not None
    }


def judge(reading: GpuReading, series: Mapping[str, CounterSeries], limits: GpueccParameters) -> list[Finding]:
    with_ecc = {gpu.name for gpu in reading.gpus if gpu.ecc.enabled}
    return judge_each(reading, lambda gpu: _judge(gpu, series.get(gpu.component), limits, with_ecc), NOTHING)


def _judge(
    gpu: Gpu, series: CounterSeries | None, limits: GpueccParameters, with_ecc: set[str | None]
) -> list[Finding]:
    findings = [*judge_unread(gpu, "ecc"), *_mode(gpu, with_ecc)]
    if not gpu.ecc.enabled:
        return findings
    corrected = None if series is None else series.rise(CORRECTED_WINDOW_S).amount
    measured = _measurements(gpu, corrected, limits)
    findings += [*_uncorrected(gpu, measured), *_repairs(gpu, measured)]
    if corrected is not None and corrected > limits.max_corrected_per_hour:
        message = f"{corrected:.0f} corrected errors within an hour, limit {limits.max_corrected_per_hour}"
        findings.append(gpu_finding(gpu, Verdict.WARN, "CorrectedErrors", message, measured))
    if not findings and measured:
        findings.append(
            gpu_finding(gpu, Verdict.PASS, "Ok", "no uncorrectable error since the driver was loaded", measured)
        )
    return findings


def _mode(gpu: Gpu, with_ecc: set[str | None]) -> list[Finding]:
    ecc = gpu.ecc
    if ecc.enabled is not None and ecc.pending_enabled is not None and ecc.enabled != ecc.pending_enabled:
        message = f"the next reset switches ECC {'on' if ecc.pending_enabled else 'off'}"
        return [gpu_finding(gpu, Verdict.WARN, "EccModePending", message, (), FaultClass.RESET)]
    if ecc.enabled is False and gpu.name in with_ecc:
        message = "ECC is off, but on for other GPUs of this model: run nvidia-smi -e 1, then reset the GPU"
        return [gpu_finding(gpu, Verdict.WARN, "EccOff", message)]
    return []


def _uncorrected(gpu: Gpu, measured: list[Measurement]) -> list[Finding]:
    counts = gpu.ecc.volatile
    kinds = [
        ("DramUncorrectable", "memory", counts.dram_uncorrected),
        ("SramUncorrectable", "SRAM", counts.sram_uncorrected),
    ]
    if counts.dram_uncorrected is None and counts.sram_uncorrected is None:
        kinds = [("Uncorrectable", "ECC", counts.uncorrected)]
    return [
        gpu_finding(
            gpu,
            Verdict.FAIL,
            reason,
            f"{count} uncorrectable {where} errors since the driver was loaded: reset the GPU when it is idle",
            measured,
            FaultClass.RESET,
        )
        for reason, where, count in kinds
        if count
    ]


def _repairs(gpu: Gpu, measured: list[Measurement]) -> list[Finding]:
    findings = []
    if gpu.ecc.sram_threshold_exceeded:
        message = "more SRAM errors than NVIDIA allows (SRAM Threshold Exceeded): replace the GPU"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "SramThresholdExceeded", message, measured, FaultClass.REPLACE))
    if gpu.ecc.unrepairable_memory:
        message = "the memory can no longer be repaired: replace the GPU"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "UnrepairableMemory", message, measured, FaultClass.REPLACE))
    if gpu.ecc.channel_repair_pending or gpu.ecc.tpc_repair_pending:
        what = "memory channel" if gpu.ecc.channel_repair_pending else "TPC"
        message = f"the repair of a {what} is pending: reset the GPU when it is idle"
        findings.append(gpu_finding(gpu, Verdict.WARN, "RepairPending", message, measured, FaultClass.RESET))
    return findings


def _measurements(gpu: Gpu, corrected: float | None, limits: GpueccParameters) -> list[Measurement]:
    now, life = gpu.ecc.volatile, gpu.ecc.aggregate
    values: list[tuple[str, float | None, float | None]] = [
        ("corrected_last_hour", corrected, limits.max_corrected_per_hour),
        ("dram_uncorrected", now.dram_uncorrected, 0),
        ("sram_uncorrected", now.sram_uncorrected, 0),
        ("corrected_lifetime", life.corrected, None),
        ("uncorrected_lifetime", life.uncorrected, None),
    ]
    return [Measurement(name, value, "", threshold) for name, value, threshold in values if value is not None]

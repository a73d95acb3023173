"""Judges remapped rows (Ampere and later) and retired pages (earlier GPUs).

Sources: NVIDIA GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt): the next reset performs a
pending remapping, and work may continue until then; the failure flag is a condition for a replacement. For pages:
NVIDIA Dynamic Page Retirement (docs.nvidia.com/deploy/dynamic-page-retirement).
"""

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread
from muster_checks.remapped import RemappedParameters

NOTHING = "no GPU on this node reports remapped rows or retired pages (with MIG instances the driver does not)"


def judge(reading: GpuReading, limits: RemappedParameters) -> list[Finding]:
    return judge_each(reading, lambda gpu: _judge(gpu, limits), NOTHING)


def _judge(gpu: Gpu, limits: RemappedParameters) -> list[Finding]:
    measured = _measurements(gpu, limits)
    findings = [*judge_unread(gpu, "remapped", "retired"), *_rows(gpu, measured), *_pages(gpu, limits, measured)]
    if not findings and measured:
        findings.append(gpu_finding(gpu, Verdict.PASS, "Ok", "no remapping is pending", measured))
    return findings


def _rows(gpu: Gpu, measured: list[Measurement]) -> list[Finding]:
    rows, findings = gpu.remapped, []
    if rows.failure:
        message = "a row could not be remapped: run NVIDIA's field diagnostic, then replace the GPU"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "RowRemapFailure", message, measured, FaultClass.REPLACE))
    if rows.pending:
        message = "a row remapping is pending: reset the GPU when it is idle"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "RowRemapPending", message, measured, FaultClass.RESET))
    if rows.histogram is not None and rows.histogram.none and not rows.failure:
        message = f"{rows.histogram.none} banks have no spare row left: the next bad row there cannot be remapped"
        findings.append(gpu_finding(gpu, Verdict.WARN, "NoSpareRows", message, measured))
    return findings


def _pages(gpu: Gpu, limits: RemappedParameters, measured: list[Measurement]) -> list[Finding]:
    pages, findings = _retired(gpu), []
    if gpu.retired.pending:
        message = "a page retirement is pending and the page still in use: reset the GPU when it is idle"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "PageRetirementPending", message, measured, FaultClass.RESET))
    if pages is not None and pages >= limits.max_retired_pages:
        message = f"{pages} pages retired, limit {limits.max_retired_pages}: replace the GPU"
        findings.append(gpu_finding(gpu, Verdict.FAIL, "RetiredPages", message, measured, FaultClass.REPLACE))
    elif pages is not None and pages >= limits.warn_retired_pages:
        message = f"{pages} pages retired (FAIL from {limits.max_retired_pages})"
        findings.append(gpu_finding(gpu, Verdict.WARN, "RetiredPages", message, measured))
    return findings


def _retired(gpu: Gpu) -> int | None:
    known = [count for count in (gpu.retired.single_bit, gpu.retired.double_bit) if count is not None]
    return sum(known) if known else None


def _measurements(gpu: Gpu, limits: RemappedParameters) -> list[Measurement]:
    rows, banks = gpu.remapped, gpu.remapped.histogram
    values: list[tuple[str, int | None, float | None]] = [
        ("rows_remapped_correctable", rows.corrected, None),
        ("rows_remapped_uncorrectable", rows.uncorrected, None),
        ("banks_without_spare_rows", None if banks is None else banks.none, 0),
        ("pages_retired", _retired(gpu), limits.max_retired_pages),
    ]
    return [Measurement(name, value, "", threshold) for name, value, threshold in values if value is not None]

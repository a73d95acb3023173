"""Judges the results and rates of the arithmetic and memory tests. Pure: figures in, findings out."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.cuda.launcher import GpuRun
from muster_checks.cuda.protocol import ArithmeticResult, WrongValues
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.hardware.siblings import share_of_others
from muster_checks.nvidia.models import GpuModel

GIB = 1 << 30
ECC_ERROR = "CUDA_ERROR_ECC_UNCORRECTABLE"


class GpumemLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU fails below a ``min_…`` and warns below a ``warn_…``. Shares range from 0 to 1."""

    min_share_of_bandwidth: float
    warn_share_of_bandwidth: float
    warn_share_of_flops: float
    min_share_of_others: float
    warn_share_of_others: float


class _Figure(msgspec.Struct, frozen=True):
    """One measured rate of one GPU. ``bounds``: (verdict, rate, description), the failing ones first."""

    reason: str
    what: str
    unit: str
    value: float
    bounds: tuple[tuple[Verdict, float, str], ...]

    @property
    def measurement(self) -> Measurement:
        floor = max((rate for verdict, rate, _ in self.bounds if verdict is Verdict.FAIL), default=None)
        return Measurement(self.what, round(self.value, 1), self.unit, None if floor is None else round(floor, 1))

    def broken(self) -> tuple[Verdict, float, str] | None:
        return next((bound for bound in self.bounds if self.value < bound[1]), None)


def judge(
    gpus: Sequence[GpuRun], models: ModelTable[GpuModel], held: Mapping[str, str], limits: GpumemLimits
) -> list[Finding]:
    """held: by address, why low rates of a GPU prove nothing. A wrong result counts in any case."""
    daxpy = _shares(gpus, lambda found: found.daxpy_gb_per_s)
    dgemm = _shares(gpus, lambda found: found.dgemm_gflop_per_s)
    findings: list[Finding] = []
    for gpu in gpus:
        if not isinstance(gpu.result, ArithmeticResult):
            findings.append(_not_computed(gpu))
            continue
        model = models.of(gpu.name)
        figures = (
            _bandwidth(gpu.result, model, limits, daxpy.get(gpu.index)),
            _flops(gpu.result, model, limits, dgemm.get(gpu.index)),
        )
        why = held.get(gpu.address) or (
            "MIG is on, and an instance is only a part of the GPU" if " MIG " in gpu.name else ""
        )
        findings += _of_one(gpu, gpu.result, figures, why)
    return findings


def _not_computed(gpu: GpuRun) -> Finding:
    if gpu.error == ECC_ERROR:
        message = f"uncorrectable memory error during the test ({gpu.trouble}): reset the GPU, and see the check dmesg"
        return _finding(gpu, Verdict.FAIL, "UncorrectableMemory", message, fault_class=FaultClass.RESET)
    return _finding(gpu, Verdict.UNKNOWN, "NotMeasured", gpu.trouble)


def _of_one(gpu: GpuRun, found: ArithmeticResult, figures: Sequence[_Figure], held: str) -> list[Finding]:
    measurements = [figure.measurement for figure in figures]
    measurements.append(Measurement("tested", round(found.tested_bytes / GIB, 1), "GiB"))
    findings = []
    if found.wrong:
        # twice in a row is a hardware fault; once may be a bit flip in memory without ECC, which a reset clears
        fault_class = FaultClass.REPLACE if any(wrong.again for wrong in found.wrong) else FaultClass.RESET
        message = "; ".join(_wrong(wrong) for wrong in found.wrong)
        findings.append(_finding(gpu, Verdict.FAIL, "WrongResult", message, measurements, fault_class))
    low = [(figure, broken) for figure in figures if (broken := figure.broken()) is not None]
    if low and held:
        listed = "; ".join(_low(figure, *broken) for figure, broken in low)
        message = f"{listed}: not a valid measurement: {held}"
        findings.append(_finding(gpu, Verdict.UNKNOWN, "InUse", message, measurements))
    for figure, broken in [] if held else low:
        message = f"{_low(figure, *broken)}: check clocks and temperature (nvidia-smi -q -d PERFORMANCE), then reboot"
        fault_class = FaultClass.REBOOT if broken[0] is Verdict.FAIL else FaultClass.NONE
        findings.append(_finding(gpu, broken[0], figure.reason, message, measurements, fault_class))
    figured = ", ".join(f"{figure.what} {figure.value:.0f} {figure.unit}" for figure in figures)
    return findings or [_finding(gpu, Verdict.PASS, "Measured", f"{figured}, all results correct", measurements)]


def _low(figure: _Figure, _: Verdict, rate: float, what: str) -> str:
    return f"{figure.what} {figure.value:.0f} {figure.unit}, below {rate:.0f} ({what})"


def _wrong(wrong: WrongValues) -> str:
    unit = "byte" if wrong.test == "memory" else "element"
    again = f"{wrong.again} in a second run" if wrong.again else "none in a second run"
    return f"{wrong.test}: {wrong.count} of {wrong.of} values are wrong, the first at {unit} {wrong.first}; {again}"


def _bandwidth(found: ArithmeticResult, model: GpuModel | None, limits: GpumemLimits, share: float | None) -> _Figure:
    value = found.daxpy_gb_per_s
    peak = model.memory_gb_per_s if model else None
    bounds = [*_of_peak(Verdict.FAIL, limits.min_share_of_bandwidth, peak), *_of_others(value, share, limits)]
    bounds += _of_peak(Verdict.WARN, limits.warn_share_of_bandwidth, peak)
    return _Figure("LowMemoryBandwidth", "daxpy", "GB/s", value, _failing_first(bounds))


def _flops(found: ArithmeticResult, model: GpuModel | None, limits: GpumemLimits, share: float | None) -> _Figure:
    value = found.dgemm_gflop_per_s
    peak = model.fp64_tflops * 1000 if model and model.fp64_tflops else None
    bounds = [*_of_peak(Verdict.WARN, limits.warn_share_of_flops, peak), *_of_others(value, share, limits)]
    return _Figure("LowArithmetic", "dgemm", "GFLOP/s", value, _failing_first(bounds))


def _of_peak(verdict: Verdict, part: float, peak: float | None) -> list[tuple[Verdict, float, str]]:
    return [] if peak is None else [(verdict, part * peak, f"{part:.0%} of the model's peak")]


def _of_others(value: float, share: float | None, limits: GpumemLimits) -> list[tuple[Verdict, float, str]]:
    if not share:
        return []
    parts = ((Verdict.FAIL, limits.min_share_of_others), (Verdict.WARN, limits.warn_share_of_others))
    return [(verdict, part * value / share, f"{part:.0%} of the other GPUs' rate") for verdict, part in parts]


def _failing_first(bounds: Sequence[tuple[Verdict, float, str]]) -> tuple[tuple[Verdict, float, str], ...]:
    return tuple(sorted(bounds, key=lambda bound: (bound[0] is not Verdict.FAIL, -bound[1])))


def _shares(gpus: Sequence[GpuRun], rate: Callable[[ArithmeticResult], float]) -> dict[int, float]:
    """By index: each GPU's rate as a share of that of other GPUs with the same name."""
    groups: dict[str, dict[str, float]] = {}
    for gpu in gpus:
        if isinstance(gpu.result, ArithmeticResult):
            groups.setdefault(gpu.name, {})[str(gpu.index)] = rate(gpu.result)
    return {int(index): share for group in groups.values() for index, share in share_of_others(group).items()}


def _finding(
    gpu: GpuRun,
    verdict: Verdict,
    reason: str,
    message: str,
    measurements: Sequence[Measurement] = (),
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    return Finding(
        component=f"gpu/{gpu.address or f'index-{gpu.index}'}",
        verdict=verdict,
        reason=reason,
        message=message,
        fault_class=fault_class,
        measurements=tuple(measurements),
    )

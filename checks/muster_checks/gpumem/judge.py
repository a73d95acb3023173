"""Does a GPU compute and remember what it should, as fast as it should? Pure: figures in, findings out."""

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
    """Below a ``min_…`` it fails, below a ``warn_…`` it warns. Shares are of 1."""

    min_share_of_bandwidth: float
    warn_share_of_bandwidth: float
    warn_share_of_flops: float
    min_share_of_others: float
    warn_share_of_others: float


class _Figure(msgspec.Struct, frozen=True):
    """One measured rate of one GPU. ``bounds``: (verdict, rate, what it is), the failing ones first."""

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
    """held: why low figures of a GPU prove nothing, by address. A wrong result is wrong whoever else is there."""
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
        why = held.get(gpu.address) or ("MIG is on, and a slice is not the whole GPU" if " MIG " in gpu.name else "")
        findings += _of_one(gpu, gpu.result, figures, why)
    return findings


def _not_computed(gpu: GpuRun) -> Finding:
    if gpu.error == ECC_ERROR:
        message = f"uncorrectable memory error while it was tested ({gpu.trouble}); reset it, and see the check dmesg"
        return _finding(gpu, Verdict.FAIL, "UncorrectableMemory", message, fault_class=FaultClass.RESET)
    return _finding(gpu, Verdict.UNKNOWN, "NotMeasured", gpu.trouble)


def _of_one(gpu: GpuRun, found: ArithmeticResult, figures: Sequence[_Figure], held: str) -> list[Finding]:
    measurements = [figure.measurement for figure in figures]
    measurements.append(Measurement("tested", round(found.tested_bytes / GIB, 1), "GiB"))
    findings = []
    if found.wrong:
        # twice in a row is the silicon; once may be a bit that flipped where there is no ECC, which a reset clears
        fault_class = FaultClass.REPLACE if any(wrong.again for wrong in found.wrong) else FaultClass.RESET
        said = "; ".join(_wrong(wrong) for wrong in found.wrong)
        findings.append(_finding(gpu, Verdict.FAIL, "WrongResult", said, measurements, fault_class))
    low = [(figure, broken) for figure in figures if (broken := figure.broken()) is not None]
    if low and held:
        said = "; ".join(_low(figure, *broken) for figure, broken in low)
        findings.append(_finding(gpu, Verdict.UNKNOWN, "InUse", f"{said}, which proves nothing: {held}", measurements))
    for figure, broken in [] if held else low:
        said = f"{_low(figure, *broken)}; see its clocks and temperature (nvidia-smi -q -d PERFORMANCE), then reboot"
        fault_class = FaultClass.REBOOT if broken[0] is Verdict.FAIL else FaultClass.NONE
        findings.append(_finding(gpu, broken[0], figure.reason, said, measurements, fault_class))
    figured = ", ".join(f"{figure.what} {figure.value:.0f} {figure.unit}" for figure in figures)
    return findings or [_finding(gpu, Verdict.PASS, "Measured", f"{figured}, all results right", measurements)]


def _low(figure: _Figure, _: Verdict, rate: float, what: str) -> str:
    return f"{figure.what} {figure.value:.0f} {figure.unit}, below {rate:.0f} ({what})"


def _wrong(wrong: WrongValues) -> str:
    unit = "byte" if wrong.test == "memory" else "element"
    again = f"{wrong.again} again in a second run" if wrong.again else "none in a second run"
    return f"{wrong.test}: {wrong.count} of {wrong.of} values wrong, the first at {unit} {wrong.first}, {again}"


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
    return [] if peak is None else [(verdict, part * peak, f"{part:.0%} of its peak")]


def _of_others(value: float, share: float | None, limits: GpumemLimits) -> list[tuple[Verdict, float, str]]:
    if not share:
        return []
    parts = ((Verdict.FAIL, limits.min_share_of_others), (Verdict.WARN, limits.warn_share_of_others))
    return [(verdict, part * value / share, f"{part:.0%} of what its siblings do") for verdict, part in parts]


def _failing_first(bounds: Sequence[tuple[Verdict, float, str]]) -> tuple[tuple[Verdict, float, str], ...]:
    return tuple(sorted(bounds, key=lambda bound: (bound[0] is not Verdict.FAIL, -bound[1])))


def _shares(gpus: Sequence[GpuRun], rate: Callable[[ArithmeticResult], float]) -> dict[int, float]:
    """By index; compared are GPUs of one name."""
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

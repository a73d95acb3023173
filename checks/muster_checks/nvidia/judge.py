"""What the checks on one GPU reading share: a finding for each GPU, and counters judged by their rise."""

from collections.abc import Callable, Mapping, Sequence

from muster_checks.base.counter_history import CounterSeries, read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.probe import SHARED_S, read_gpus

FIRST_INTERVAL_S = 2.0
"""Between the two readings of a first run: long enough for what rises fast, short enough for a person to wait."""


def gpu_finding(
    gpu: Gpu,
    verdict: Verdict,
    reason: str,
    message: str,
    measurements: Sequence[Measurement] = (),
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    """A finding on ``gpu``, which the message begins with."""
    return Finding(
        component=gpu.component,
        verdict=verdict,
        reason=reason,
        message=f"{gpu.label}: {message}",
        measurements=tuple(measurements),
        fault_class=fault_class,
    )


def judge_unread(gpu: Gpu, *fields: str) -> list[Finding]:
    """One UNKNOWN finding where the driver failed to say one of ``fields`` (``ecc`` means ``ecc.…``, too)."""
    failed = {
        name: text
        for name, text in gpu.errors.items()
        if name in ("handle", *fields) or name.startswith(tuple(f"{field}." for field in fields))
    }
    if not failed:
        return []
    said = ", ".join(f"{name}: {text}" for name, text in sorted(failed.items())[:3])
    return [gpu_finding(gpu, Verdict.UNKNOWN, "NotReadable", f"the driver does not say ({said})")]


def judge_each(reading: GpuReading, judge: Callable[[Gpu], Sequence[Finding]], nothing: str) -> list[Finding]:
    """The findings of every GPU. One that is lost or gone is UNKNOWN here; that it is, is for the check gpucount.

    nothing: raised as NotHere when no GPU gave a finding, e.g. "no GPU here has ECC"
    Raises CannotTell when the driver lists no GPU at all.
    """
    findings: list[Finding] = []
    for gpu in reading.gpus:
        if gpu.lost:
            findings.append(gpu_finding(gpu, Verdict.UNKNOWN, "GpuLost", f"{gpu.lost}; see gpucount"))
        else:
            findings += judge(gpu)
    for address in reading.missing:
        message = f"GPU {address} was here before and is gone; see gpucount"
        findings.append(
            Finding(component=f"gpu/{address}", verdict=Verdict.UNKNOWN, reason="GpuMissing", message=message)
        )
    if findings:
        return findings
    if reading.gpus:
        raise NotHere(nothing, "NotSupported")
    raise CannotTell("the driver lists no GPU; see gpucount", "NoGpuListed")


async def read_counted(
    node: NodeView, check: str, counters: Callable[[GpuReading], Mapping[str, float]]
) -> tuple[GpuReading, dict[str, CounterSeries]]:
    """A reading, and the series of what ``counters`` takes from each reading of this check."""
    latest: list[GpuReading] = []
    # a reading is counted once: a run soon after another must not take the same one for a second sight
    max_age_s = min(SHARED_S, node.history.since_noted_s(check))
    if not node.history.noted(check):
        max_age_s = FIRST_INTERVAL_S / 2

    async def read() -> Mapping[str, float]:
        latest.append(await read_gpus(node, max_age_s))
        return counters(latest[-1])

    series = await read_series(node.history, check, read, FIRST_INTERVAL_S)
    return latest[-1], series

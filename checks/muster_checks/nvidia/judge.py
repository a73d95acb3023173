"""Helpers that the checks on a GPU reading share: a finding for each GPU, and counters judged by their increase."""

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

from muster_checks.base.counter_history import CounterSeries, read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.probe import SHARED_S, read_gpus

FIRST_INTERVAL_S = 2.0
"""Between the two readings of a first run: long enough to see a fast increase, short enough for a person to wait."""


def gpu_finding(
    gpu: Gpu,
    verdict: Verdict,
    reason: str,
    message: str,
    measurements: Sequence[Measurement] = (),
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    """A finding on ``gpu``; its message begins with the GPU's label."""
    return Finding(
        component=gpu.component,
        verdict=verdict,
        reason=reason,
        message=f"{gpu.label}: {message}",
        measurements=tuple(measurements),
        fault_class=fault_class,
    )


def judge_unread(gpu: Gpu, *fields: str) -> list[Finding]:
    """One UNKNOWN finding if the driver could not report one of ``fields`` (``ecc`` includes ``ecc.…``)."""
    failed = {
        name: text
        for name, text in gpu.errors.items()
        if name in ("handle", *fields) or name.startswith(tuple(f"{field}." for field in fields))
    }
    if not failed:
        return []
    listed = ", ".join(f"{name}: {text}" for name, text in sorted(failed.items())[:3])
    return [gpu_finding(gpu, Verdict.UNKNOWN, "NotReadable", f"the driver could not read {listed}")]


def judge_each(reading: GpuReading, judge: Callable[[Gpu], Sequence[Finding]], nothing: str) -> list[Finding]:
    """The findings of every GPU. A lost or missing GPU is UNKNOWN here; the check gpucount reports it as FAIL.

    nothing: message of the NotHere raised when no GPU has a finding, e.g. "no GPU on this node has ECC"
    Raises CannotTell when the driver lists no GPU at all.
    """
    findings: list[Finding] = []
    for gpu in reading.gpus:
        if gpu.lost:
            findings.append(gpu_finding(gpu, Verdict.UNKNOWN, "GpuLost", f"{gpu.lost}; see the check gpucount"))
        else:
            findings += judge(gpu)
    for address in reading.missing:
        message = f"GPU {address} is missing; see the check gpucount"
        findings.append(
            Finding(component=f"gpu/{address}", verdict=Verdict.UNKNOWN, reason="GpuMissing", message=message)
        )
    if findings:
        return findings
    if reading.gpus:
        raise NotHere(nothing, "NotSupported")
    raise CannotTell("the driver lists no GPU; see the check gpucount", "NoGpuListed")


_counted: "WeakKeyDictionary[NodeView, dict[str, GpuReading]]" = WeakKeyDictionary()  # the last one, by check


async def read_counted(
    node: NodeView, check: str, counters: Callable[[GpuReading], Mapping[str, float]]
) -> tuple[GpuReading, dict[str, CounterSeries]]:
    """A reading, and the series of the values that ``counters`` takes from each reading of this check."""
    latest: list[GpuReading] = []
    # each reading counts once: a run soon after another must not count the same reading twice
    max_age_s = min(SHARED_S, node.history.since_noted_s(check))
    if not node.history.noted(check):
        max_age_s = FIRST_INTERVAL_S / 2

    async def read() -> Mapping[str, float]:
        latest.append(await read_gpus(node, max_age_s))
        counted = _counted.setdefault(node, {})
        if counted.get(check) is latest[-1]:
            return {}  # another run of the check, with other parameters, has waited for the same reading
        counted[check] = latest[-1]
        return counters(latest[-1])

    series = await read_series(node.history, check, read, FIRST_INTERVAL_S)
    return latest[-1], series

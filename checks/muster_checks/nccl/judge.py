"""Judges an all-reduce: it must be correct, and as fast as the model's links allow."""

from collections.abc import Mapping

import msgspec

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.hardware.expected_values import load_table
from muster_checks.nccl import NcclParameters
from muster_checks.nccl.parse import AllReduceRun


class NcclModel(msgspec.Struct, frozen=True):
    """Bandwidth that ``gpus`` GPUs of this model must reach from ``size_mib`` on; a lower one only warns below that."""

    model: str
    min_bus_bandwidth_gb_per_s: float | None = None
    gpus: int = 8
    size_mib: int = 0
    source: str = ""


def judge(run: AllReduceRun, parameters: NcclParameters, held: Mapping[str, str]) -> list[Finding]:
    """One finding on the node: an all-reduce uses all GPUs and does not show which of them is slow.

    held: why a low figure proves nothing, by PCI address
    """
    largest = max(run.rows, key=lambda row: row.size_bytes)
    if not largest.bus_gb_per_s:
        raise CannotTell("all_reduce_perf reports no bandwidth for the largest size", "NcclFailed")
    reached = min(largest.bus_gb_per_s)
    wrong = max((row.wrong or 0 for row in run.rows), default=0) or run.out_of_bounds or 0
    limit, source, from_bytes = _limit(run, parameters)
    verdict, reason, what, asks = Verdict.PASS, "AllReduced", "correct", FaultClass.NONE
    if limit is None:
        what += "; its bandwidth is not judged, as no minimum is published for these GPUs"
    if wrong:
        verdict, reason, asks = Verdict.FAIL, "WrongResult", FaultClass.CONTACT
        what = f"{wrong} elements of the result are wrong: run the check dcgm to find the GPU"
    elif limit is not None and reached < limit:
        verdict, reason, asks = Verdict.FAIL, "SlowAllReduce", FaultClass.CONTACT
        if largest.size_bytes < from_bytes:  # small messages are slower on healthy machines too
            verdict, asks = Verdict.WARN, FaultClass.NONE
        what = f"{reached:.4g} GB/s, expected {limit:g} ({source}): run the checks nvlink and pcielink"
        if held:
            address, why = next(iter(held.items()))
            verdict, reason, asks = Verdict.UNKNOWN, "InUse", FaultClass.NONE
            what = f"{reached:.4g} GB/s, which is not conclusive (GPU {address}: {why})"
    return [
        Finding(
            component="host",
            verdict=verdict,
            reason=reason,
            message=shorten(f"all-reduce over {len(run.models) or 'all'} GPUs: {what}"),
            fault_class=asks,
            measurements=(
                Measurement("bus_bandwidth", reached, "GB/s", limit),
                Measurement("wrong_elements", wrong, "", 0.0),
            ),
        )
    ]


def _limit(run: AllReduceRun, parameters: NcclParameters) -> tuple[float | None, str, int]:
    """(limit in GB/s, its source, the message size in bytes from which it applies)."""
    if parameters.min_bus_bandwidth_gb_per_s is not None:
        return parameters.min_bus_bandwidth_gb_per_s, "min_bus_bandwidth_gb_per_s", 0
    table = load_table(NcclModel, "nccl/models.yaml", parameters.expected)
    known = table.of(run.models[0]) if run.models and len(set(run.models)) == 1 else None
    if known is None or known.gpus != len(run.models):
        return None, "", 0
    return known.min_bus_bandwidth_gb_per_s, known.source, known.size_mib << 20

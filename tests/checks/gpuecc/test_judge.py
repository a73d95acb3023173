"""What ECC counts come to."""

from pathlib import Path
from typing import Any

import pytest
from tests.checks.nvidia.on_bus import Clock, answer, gpu_node
from tests.checks.nvidia.samples_of import changed, healthy, numbered, of, series

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpuecc import GPUECC, GpueccParameters
from muster_checks.gpuecc.judge import counters, judge
from muster_checks.nvidia.gpu import EccCounts, Gpu

LIMITS = GpueccParameters()
PASS = (Verdict.PASS, "Ok", FaultClass.NONE)


def judged(*gpus: Gpu, counted: dict[str, CounterSeries] | None = None) -> list[tuple[Verdict, str, FaultClass]]:
    findings = judge(of(*gpus), counted or {}, LIMITS)
    return [(finding.verdict, finding.reason, finding.fault_class) for finding in findings]


@pytest.mark.parametrize(
    ("ecc", "expected"),
    [
        ({}, PASS),
        ({"volatile": EccCounts(dram_uncorrected=1)}, (Verdict.FAIL, "DramUncorrectable", FaultClass.RESET)),
        ({"volatile": EccCounts(sram_uncorrected=1)}, (Verdict.FAIL, "SramUncorrectable", FaultClass.RESET)),
        ({"volatile": EccCounts(uncorrected=1)}, (Verdict.FAIL, "Uncorrectable", FaultClass.RESET)),
        ({"aggregate": EccCounts(uncorrected=9, dram_uncorrected=9)}, PASS),
        ({"volatile": EccCounts(corrected=5_000_000)}, PASS),
        ({"sram_threshold_exceeded": True}, (Verdict.FAIL, "SramThresholdExceeded", FaultClass.REPLACE)),
        ({"unrepairable_memory": True}, (Verdict.FAIL, "UnrepairableMemory", FaultClass.REPLACE)),
        ({"channel_repair_pending": True}, (Verdict.WARN, "RepairPending", FaultClass.RESET)),
        ({"tpc_repair_pending": True}, (Verdict.WARN, "RepairPending", FaultClass.RESET)),
        ({"pending_enabled": False}, (Verdict.WARN, "EccModePending", FaultClass.RESET)),
        ({"enabled": False, "pending_enabled": True}, (Verdict.WARN, "EccModePending", FaultClass.RESET)),
    ],
)
def test_counts_and_flags(ecc: dict[str, Any], expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(changed(healthy(), ecc=ecc)) == [expected]


def test_several_troubles_are_several_findings() -> None:
    gpu = changed(healthy(), ecc={"volatile": EccCounts(dram_uncorrected=2, sram_uncorrected=1)})
    assert [reason for _, reason, _ in judged(gpu)] == ["DramUncorrectable", "SramUncorrectable"]


@pytest.mark.parametrize(("risen", "verdict"), [(100_000, Verdict.PASS), (100_001, Verdict.WARN)])
def test_corrected_errors_are_judged_by_their_rise_within_an_hour(risen: int, verdict: Verdict) -> None:
    gpu = healthy()
    before = 40_000_000.0
    counted = series(**{gpu.component: [(0, 0.0), (3600, before), (7200, before + risen)]})
    (finding,) = judge(of(gpu), counted, LIMITS)
    assert finding.verdict is verdict
    assert ("corrected_last_hour", risen) in [(m.name, m.value) for m in finding.measurements]


def test_ecc_that_is_off_on_one_of_equals_warns() -> None:
    on, off = numbered(healthy(), 0, 1)
    off = changed(off, ecc={"enabled": False, "pending_enabled": False})
    assert judged(on, off) == [PASS, (Verdict.WARN, "EccOff", FaultClass.NONE)]


def test_ecc_that_is_off_everywhere_is_somebodys_choice() -> None:
    with pytest.raises(NotHere, match=r"\bECC\b"):
        judged(changed(healthy(), ecc={"enabled": False, "pending_enabled": False}))


def test_counts_that_cannot_be_read_are_unknown() -> None:
    gpu = changed(healthy(), errors={"ecc.volatile.dram_uncorrected": "Unknown Error"})
    assert judged(gpu) == [(Verdict.UNKNOWN, "NotReadable", FaultClass.NONE)]


def test_lost_gpus_are_not_counted() -> None:
    gpu = healthy()
    assert counters(of(gpu)) == {gpu.component: 0.0}
    assert counters(of(changed(gpu, lost="GPU is lost"))) == {}
    assert counters(of(Gpu(index=0))) == {}


async def test_a_flood_of_corrected_errors_warns_from_the_run_that_saw_it(tmp_path: Path) -> None:
    clock = Clock()
    counts = iter([0, 0, 50_000, 200_000])

    def say(_: object) -> bytes:
        return answer(of(changed(healthy(), ecc={"volatile": EccCounts(corrected=next(counts))})))

    view = gpu_node(tmp_path, say, clock=clock)
    view.history.note("gpuecc", {})  # not its first run: nothing is read twice
    verdicts = []
    for _ in range(4):
        verdicts.append((await run_probe(GPUECC, view, LIMITS)).verdict)
        clock.now += 60
    assert verdicts == [Verdict.PASS, Verdict.PASS, Verdict.PASS, Verdict.WARN]

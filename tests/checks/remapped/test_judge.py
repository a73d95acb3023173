"""What remapped rows and retired pages come to."""

from pathlib import Path
from typing import Any

import pytest
from tests.checks.nvidia.on_bus import gpu_node
from tests.checks.nvidia.samples_of import changed, healthy, of

from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.nvidia.gpu import BankHistogram, Gpu
from muster_checks.remapped import REMAPPED, RemappedParameters
from muster_checks.remapped.judge import judge

LIMITS = RemappedParameters()
PAGES = Gpu(index=0, address="0000:00:1e.0", name="Tesla T4")


def judged(gpu: Gpu, limits: RemappedParameters = LIMITS) -> list[tuple[Verdict, str, FaultClass]]:
    return [(finding.verdict, finding.reason, finding.fault_class) for finding in judge(of(gpu), limits)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({}, [(Verdict.PASS, "Ok", FaultClass.NONE)]),
        ({"corrected": 3, "uncorrected": 7}, [(Verdict.PASS, "Ok", FaultClass.NONE)]),
        ({"pending": True}, [(Verdict.FAIL, "RowRemapPending", FaultClass.RESET)]),
        ({"failure": True}, [(Verdict.FAIL, "RowRemapFailure", FaultClass.REPLACE)]),
        (
            {"failure": True, "pending": True},
            [
                (Verdict.FAIL, "RowRemapFailure", FaultClass.REPLACE),
                (Verdict.FAIL, "RowRemapPending", FaultClass.RESET),
            ],
        ),
        ({"histogram": BankHistogram(maximum=2559, none=1)}, [(Verdict.WARN, "NoSpareRows", FaultClass.NONE)]),
        ({"histogram": BankHistogram(maximum=2559, low=1, none=0)}, [(Verdict.PASS, "Ok", FaultClass.NONE)]),
        (
            {"histogram": BankHistogram(none=1), "failure": True},
            [(Verdict.FAIL, "RowRemapFailure", FaultClass.REPLACE)],
        ),
    ],
)
def test_rows(rows: dict[str, Any], expected: list[tuple[Verdict, str, FaultClass]]) -> None:
    assert judged(changed(healthy(), remapped=rows)) == expected


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({"single_bit": 0, "double_bit": 0, "pending": False}, [(Verdict.PASS, "Ok", FaultClass.NONE)]),
        ({"single_bit": 10, "double_bit": 4}, [(Verdict.PASS, "Ok", FaultClass.NONE)]),
        ({"single_bit": 10, "double_bit": 5}, [(Verdict.WARN, "RetiredPages", FaultClass.NONE)]),
        ({"single_bit": 59}, [(Verdict.WARN, "RetiredPages", FaultClass.NONE)]),
        ({"single_bit": 50, "double_bit": 10}, [(Verdict.FAIL, "RetiredPages", FaultClass.REPLACE)]),
        (
            {"single_bit": 1, "pending": True},
            [(Verdict.FAIL, "PageRetirementPending", FaultClass.RESET)],
        ),
    ],
)
def test_pages(pages: dict[str, Any], expected: list[tuple[Verdict, str, FaultClass]]) -> None:
    assert judged(changed(PAGES, retired=pages)) == expected


def test_the_limits_are_parameters() -> None:
    gpu = changed(PAGES, retired={"single_bit": 10})
    strict = RemappedParameters(warn_retired_pages=5, max_retired_pages=10)
    assert judged(gpu, strict) == [(Verdict.FAIL, "RetiredPages", FaultClass.REPLACE)]


def test_what_could_not_be_read_is_unknown_beside_what_could() -> None:
    gpu = changed(healthy(), errors={"retired.pending": "Unknown Error"}, remapped={"pending": True})
    assert [verdict for verdict, _, _ in judged(gpu)] == [Verdict.UNKNOWN, Verdict.FAIL]


def test_a_gpu_that_reports_neither_is_skipped() -> None:
    with pytest.raises(NotHere, match="MIG"):
        judge(of(PAGES), LIMITS)


def test_counts_are_measured_with_their_limits() -> None:
    finding: Finding
    (finding,) = judge(of(changed(PAGES, retired={"single_bit": 2, "double_bit": 1})), LIMITS)
    assert [(m.name, m.value, m.threshold) for m in finding.measurements] == [("pages_retired", 3, 60)]


async def test_a_node_is_judged_by_its_reading(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, of(changed(healthy(), remapped={"pending": True})))
    result = await run_probe(REMAPPED, view, LIMITS)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "RowRemapPending")

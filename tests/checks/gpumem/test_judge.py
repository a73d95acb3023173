"""When a GPU computes or remembers wrongly, or too slowly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.cuda.launcher import GpuRun
from muster_checks.cuda.protocol import ArithmeticResult, WrongValues
from muster_checks.gpumem import GpumemParameters
from muster_checks.gpumem.judge import GpumemLimits, judge
from muster_checks.hardware.expected_values import ModelTable
from muster_checks.nvidia.models import GpuModel

LIMITS = GpumemLimits(**GpumemParameters().model_dump(exclude={"expected", "memory_share", "gpu"}))
MODELS = ModelTable([GpuModel("*A100*", memory_gb_per_s=2000.0, fp64_tflops=9.7), GpuModel("*bare*")])
A100 = "NVIDIA A100-SXM4-80GB"


def gpu(
    index: int = 0, daxpy: float = 1800.0, dgemm: float = 6000.0, wrong: tuple[WrongValues, ...] = (), name: str = A100
) -> GpuRun:
    return GpuRun(index, f"0000:{index:02x}:00.0", name, ArithmeticResult(index, daxpy, dgemm, 64 << 30, wrong))


def judged(*gpus: GpuRun, held: str = "") -> list[Finding]:
    return judge(gpus, MODELS, {"0000:00:00.0": held} if held else {}, LIMITS)


def test_a_sound_gpu_passes_with_its_figures() -> None:
    (finding,) = judged(gpu())
    assert (finding.component, finding.verdict, finding.reason) == ("gpu/0000:00:00.0", Verdict.PASS, "Measured")
    assert finding.measurements == (
        Measurement("daxpy", 1800.0, "GB/s", 1000.0),
        Measurement("dgemm", 6000.0, "GFLOP/s"),
        Measurement("tested", 64.0, "GiB"),
    )


@pytest.mark.parametrize(
    ("again", "fault_class"), [(3, FaultClass.REPLACE), (0, FaultClass.RESET)], ids=["twice", "once"]
)
def test_a_wrong_result_fails_and_asks_for_what_its_repetition_says(again: int, fault_class: FaultClass) -> None:
    (finding,) = judged(gpu(wrong=(WrongValues("dgemm", 3, 16_777_216, 131, again),)))
    assert (finding.verdict, finding.reason, finding.fault_class) == (Verdict.FAIL, "WrongResult", fault_class)
    assert finding.message.startswith("dgemm")
    assert missing_facts(finding.message, "3", "16777216", "131") == []


def test_one_result_that_is_wrong_again_is_enough_to_replace() -> None:
    (finding,) = judged(gpu(wrong=(WrongValues("daxpy", 1, 9, 0, 0), WrongValues("memory", 1, 9, 4096, 1))))
    assert finding.fault_class is FaultClass.REPLACE
    assert missing_facts(finding.message, "daxpy", "memory", "9", "4096") == []


def test_a_wrong_result_fails_whoever_else_uses_the_gpu() -> None:
    (finding,) = judged(gpu(wrong=(WrongValues("dgemm", 3, 9, 1, 1),)), held="other processes hold 9000 MiB of it")
    assert finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("daxpy", "verdict", "fault_class"),
    [
        (999.0, Verdict.FAIL, FaultClass.REBOOT),
        (1001.0, Verdict.WARN, FaultClass.NONE),
        (1399.0, Verdict.WARN, FaultClass.NONE),
        (1400.0, Verdict.PASS, FaultClass.NONE),
    ],
)
def test_memory_bandwidth_is_a_share_of_the_models_peak(
    daxpy: float, verdict: Verdict, fault_class: FaultClass
) -> None:
    (finding,) = judged(gpu(daxpy=daxpy))
    assert (finding.verdict, finding.fault_class) == (verdict, fault_class)
    if verdict is not Verdict.PASS:
        assert finding.reason == "LowMemoryBandwidth"


@pytest.mark.parametrize(("dgemm", "verdict"), [(2400.0, Verdict.WARN), (2450.0, Verdict.PASS), (10.0, Verdict.WARN)])
def test_arithmetic_below_a_share_of_the_models_peak_only_warns(dgemm: float, verdict: Verdict) -> None:
    assert judged(gpu(dgemm=dgemm))[0].verdict is verdict


@pytest.mark.parametrize("name", ["a model of which nothing is known", "a bare row"])
def test_a_gpu_without_known_peaks_is_not_measured_against_them(name: str) -> None:
    (finding,) = judged(gpu(daxpy=1.0, dgemm=1.0, name=name))
    assert finding.verdict is Verdict.PASS
    assert [measurement.threshold for measurement in finding.measurements] == [None, None, None]


@pytest.mark.parametrize(("dgemm", "verdict"), [(2900.0, Verdict.FAIL), (4700.0, Verdict.WARN), (4900.0, Verdict.PASS)])
def test_a_gpu_is_compared_with_its_siblings(dgemm: float, verdict: Verdict) -> None:
    findings = judged(*[gpu(index, dgemm=dgemm if index == 5 else 6000.0) for index in range(8)])
    assert [finding.verdict for finding in findings if finding.component != "gpu/0000:05:00.0"] == [Verdict.PASS] * 7
    assert findings[5].verdict is verdict
    if verdict is Verdict.FAIL:
        assert missing_facts(findings[5].message, "dgemm", "2900 GFLOP/s", "3000") == []
        assert "50%" in findings[5].message


def test_gpus_of_another_model_are_no_siblings() -> None:
    findings = judged(*[gpu(index) for index in range(3)], gpu(3, 300.0, 240.0, name="Tesla T4"))
    assert {finding.verdict for finding in findings} == {Verdict.PASS}


def test_a_gpu_that_is_slow_in_both_has_a_finding_for_each() -> None:
    assert [finding.reason for finding in judged(gpu(daxpy=10.0, dgemm=10.0))] == [
        "LowMemoryBandwidth",
        "LowArithmetic",
    ]


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (gpu(daxpy=10.0, dgemm=10.0), "other processes hold 9000 MiB of it"),
        (gpu(daxpy=10.0, name=f"{A100} MIG 1g.10gb"), ""),
    ],
)
def test_low_figures_of_a_gpu_in_use_prove_nothing(found: GpuRun, held: str) -> None:
    (finding,) = judged(found, held=held)
    assert (finding.verdict, finding.reason) == (Verdict.UNKNOWN, "InUse")


def test_an_uncorrectable_memory_error_fails_and_asks_for_a_reset() -> None:
    name = "CUDA_ERROR_ECC_UNCORRECTABLE"
    (finding,) = judged(GpuRun(0, "0000:00:00.0", A100, None, f"cuEventSynchronize: {name}", name))
    assert (finding.verdict, finding.fault_class) == (Verdict.FAIL, FaultClass.RESET)
    assert name in finding.message


@pytest.mark.parametrize("error", ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_DEVICE_UNAVAILABLE", "error 999", ""])
def test_what_else_the_driver_refuses_is_unknown(error: str) -> None:
    (finding,) = judged(GpuRun(2, "", "", None, f"cuMemAlloc: {error}", error))
    assert (finding.component, finding.verdict) == ("gpu/index-2", Verdict.UNKNOWN)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=8))
def test_a_gpu_that_told_nothing_never_fails(figures: list[tuple[float, float] | None]) -> None:
    gpus = [
        GpuRun(place, f"{place}", A100, None, "hung") if both is None else gpu(place, *both)
        for place, both in enumerate(figures)
    ]
    findings = judge(gpus, MODELS, {}, LIMITS)
    assert len({finding.key for finding in findings}) == len(findings)
    unknown = {finding.component for finding in findings if finding.verdict is Verdict.UNKNOWN}
    assert unknown == {f"gpu/{place}" for place, both in enumerate(figures) if both is None}

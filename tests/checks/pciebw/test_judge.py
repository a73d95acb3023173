"""When an accelerator's way to the host is too narrow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.pciebw import PciebwParameters
from muster_checks.pciebw.bandwidth import Bandwidth, HostLink
from muster_checks.pciebw.judge import PciebwLimits, judge

LIMITS = PciebwLimits(**PciebwParameters().model_dump(exclude={"expected"}))
GEN5 = HostLink(name="NVIDIA H100 80GB HBM3", link_gb_per_s=63.0)


def judged(to_device: float | None, from_device: float | None = 25.0, way: HostLink | None = None) -> Finding:
    sample = Bandwidth("gpu/a", to_device, from_device)
    return judge([sample], {} if way is None else {"gpu/a": way}, LIMITS)[0]


def test_a_sound_gpu_passes_with_its_figures() -> None:
    finding = judged(25.123, 26.0)
    assert (finding.verdict, finding.reason) == (Verdict.PASS, "Measured")
    assert finding.measurements == (
        Measurement("to_device", 25.12, "GB/s", 4.0),
        Measurement("from_device", 26.0, "GB/s", 4.0),
    )
    assert missing_facts(finding.message, "25.1 GB/s", "26.0 GB/s") == []


@pytest.mark.parametrize(("to_device", "from_device"), [(3.9, 25.0), (25.0, 3.9)])
def test_below_the_absolute_limit_it_fails_in_either_direction(to_device: float, from_device: float) -> None:
    finding = judged(to_device, from_device)
    assert (finding.verdict, finding.reason, finding.fault_class) == (Verdict.FAIL, "LowBandwidth", FaultClass.CONTACT)
    assert "3.9 GB/s, below 4.0 (min_bandwidth_gb_per_s)" in finding.message


def test_at_the_limit_it_passes() -> None:
    assert judged(4.0, 4.0).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("gb_per_s", "verdict"), [(15.7, Verdict.FAIL), (15.8, Verdict.WARN), (37.7, Verdict.WARN), (37.9, Verdict.PASS)]
)
def test_a_share_of_what_the_link_carries_is_asked(gb_per_s: float, verdict: Verdict) -> None:
    finding = judged(gb_per_s, 50.0, GEN5)
    assert finding.verdict is verdict
    assert finding.measurements[0].threshold == 15.75


def test_below_what_the_model_should_do_it_warns() -> None:
    way = HostLink(name="NVIDIA H100 80GB HBM3", expected_to_device_gb_per_s=48.0, expected_from_device_gb_per_s=48.0)
    finding = judged(45.0, 50.0, way)
    assert (finding.verdict, finding.fault_class) == (Verdict.WARN, FaultClass.NONE)
    assert "NVIDIA H100 80GB HBM3" in finding.message


def test_a_gpu_in_a_narrower_slot_is_no_equal_of_those_in_wide_ones() -> None:
    samples = [Bandwidth("gpu/0", 12.4, 12.4), *(Bandwidth(f"gpu/{i}", 26.0, 26.0) for i in (1, 2, 3))]
    links = {"gpu/0": 15.8, "gpu/1": 31.5, "gpu/2": 31.5, "gpu/3": 31.5}
    ways = {component: HostLink(name="NVIDIA L40S", link_gb_per_s=link) for component, link in links.items()}
    assert {finding.verdict for finding in judge(samples, ways, LIMITS)} == {Verdict.PASS}


def of_eight(sixth: float) -> list[Finding]:
    values = [55.0] * 5 + [sixth] + [55.0] * 2
    return judge([Bandwidth(f"gpu/{i}", value, 55.0) for i, value in enumerate(values)], {}, LIMITS)


@pytest.mark.parametrize(("sixth", "verdict"), [(27.0, Verdict.FAIL), (43.0, Verdict.WARN), (45.0, Verdict.PASS)])
def test_a_gpu_is_compared_with_its_siblings(sixth: float, verdict: Verdict) -> None:
    findings = of_eight(sixth)
    assert findings[5].verdict is verdict
    assert {finding.verdict for place, finding in enumerate(findings) if place != 5} == {Verdict.PASS}


def test_of_several_broken_limits_the_one_it_misses_most_is_told() -> None:
    finding = of_eight(2.0)[5]
    assert missing_facts(finding.message, "55.0") == []
    assert "50%" in finding.message


def test_only_equals_are_siblings() -> None:
    samples = [Bandwidth("gpu/a", 12.0, 12.0), *[Bandwidth(f"gpu/{i}", 55.0, 55.0) for i in range(3)]]
    ways = {"gpu/a": HostLink(name="NVIDIA T4")}
    assert {finding.verdict for finding in judge(samples, ways, LIMITS)} == {Verdict.PASS}
    ipus = [Bandwidth(f"ipu/10.1.5.1/{i}", 6.0, 6.0) for i in range(3)]
    assert {finding.verdict for finding in judge([*samples, *ipus], ways, LIMITS)} == {Verdict.PASS}


def test_a_low_figure_of_a_gpu_in_use_proves_nothing() -> None:
    finding = judged(2.0, 25.0, HostLink(busy="other processes hold 40960 MiB of it"))
    assert (finding.verdict, finding.reason) == (Verdict.UNKNOWN, "InUse")
    assert len(finding.measurements) == 2


def test_a_good_figure_of_a_gpu_in_use_is_good() -> None:
    assert judged(25.0, 25.0, HostLink(busy="MIG")).verdict is Verdict.PASS


def test_what_could_not_be_measured_is_unknown_and_says_why() -> None:
    sample = Bandwidth("gpu/a", None, None, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")
    (finding,) = judge([sample], {}, LIMITS)
    assert (finding.verdict, finding.reason, finding.message) == (Verdict.UNKNOWN, "NotMeasured", sample.trouble)
    finding = judged(None, None)
    assert (finding.verdict, finding.reason) == (Verdict.UNKNOWN, "NotMeasured")
    assert finding.message


def test_one_direction_alone_is_judged() -> None:
    assert judged(None, 3.0).verdict is Verdict.FAIL
    assert judged(None, 30.0).measurements == (Measurement("from_device", 30.0, "GB/s", 4.0),)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.none() | st.floats(0, 1e6)] * 2), max_size=8), st.none() | st.floats(0, 200))
def test_every_sample_gets_one_finding_and_without_a_figure_none_fails(
    values: list[tuple[float | None, float | None]], link: float | None
) -> None:
    samples = [Bandwidth(f"gpu/{i}", *both) for i, both in enumerate(values)]
    findings = judge(samples, {sample.component: HostLink(link_gb_per_s=link) for sample in samples}, LIMITS)
    assert [finding.component for finding in findings] == [sample.component for sample in samples]
    for (to_device, from_device), finding in zip(values, findings, strict=True):
        assert (finding.verdict is Verdict.UNKNOWN) == (to_device is None and from_device is None)


def test_an_ipu_has_no_fixed_floor_and_a_slow_one_asks_for_quarantine() -> None:
    ipus = [Bandwidth(f"ipu/10.1.5.1/{board}", 3.0 if board else 1.0, 3.0) for board in range(4)]
    found = {finding.component: (finding.verdict, finding.fault_class) for finding in judge(ipus, {}, LIMITS)}
    assert found.pop("ipu/10.1.5.1/0") == (Verdict.FAIL, FaultClass.QUARANTINE)
    assert set(found.values()) == {(Verdict.PASS, FaultClass.NONE)}
    strict = PciebwLimits(**PciebwParameters(min_ipu_bandwidth_gb_per_s=5).model_dump(exclude={"expected"}))
    assert {finding.verdict for finding in judge(ipus, {}, strict)} == {Verdict.FAIL}


def test_four_lanes_of_the_third_generation_are_not_failed_for_what_no_card_reaches_in_them() -> None:
    link = HostLink(link_gb_per_s=3.94)
    (finding,) = judge([Bandwidth("gpu/0000:3b:00.0", 3.2, 3.2)], {"gpu/0000:3b:00.0": link}, LIMITS)
    assert finding.verdict is Verdict.PASS
    (finding,) = judge([Bandwidth("gpu/0000:3b:00.0", 0.9, 3.2)], {"gpu/0000:3b:00.0": link}, LIMITS)
    assert finding.verdict is Verdict.FAIL

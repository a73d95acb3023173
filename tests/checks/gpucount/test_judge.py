"""Which GPUs are missing, and what is made of it."""

import pytest

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpucount import GpucountParameters
from muster_checks.gpucount.judge import GpuCount, judge
from muster_checks.nvidia.gpu import Gpu, GpuReading

A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
PASS, FAIL, WARN, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN
REBOOT, RESET, NONE = FaultClass.REBOOT, FaultClass.RESET, FaultClass.NONE


def listed(*addresses: str, visible: tuple[int, ...] | None = None, missing: tuple[str, ...] = ()) -> GpuReading:
    gpus = tuple(Gpu(index=place, address=address) for place, address in enumerate(addresses))
    return GpuReading(source="nvml", gpus=gpus, visible=visible, missing=missing)


def bus(*addresses: str, **drivers: str) -> dict[str, str]:
    return dict.fromkeys(addresses, "nvidia") | {{"b": B, "c": C}[name]: driver for name, driver in drivers.items()}


def judged(count: GpuCount, expected_count: int | None = None) -> dict[str, tuple[Verdict, str, FaultClass]]:
    findings = judge(count, GpucountParameters(expected_count=expected_count))
    return {finding.component: (finding.verdict, finding.reason, finding.fault_class) for finding in findings}


@pytest.mark.parametrize("expected_count", [None, 2])
def test_all_there(expected_count: int | None) -> None:
    assert judged(GpuCount(listed(A, B), bus(A, B)), expected_count) == {
        f"gpu/{A}": (PASS, "Ok", NONE),
        f"gpu/{B}": (PASS, "Ok", NONE),
        "host": (PASS, "Ok", NONE),
    }


@pytest.mark.parametrize(
    ("said", "fault_class"),
    [
        ("GPU is lost", REBOOT),
        ("GPU is inaccessible", REBOOT),
        ("GPU requires restart", RESET),
        ("GPU requires reset", RESET),
    ],
)
def test_a_lost_gpu_fails_with_what_brings_it_back(said: str, fault_class: FaultClass) -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, address=A, lost=said),))
    assert judged(GpuCount(reading, bus(A)))[f"gpu/{A}"] == (FAIL, "GpuLost", fault_class)


def test_a_gpu_that_the_driver_gives_no_handle_of_is_unknown() -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, address=A, errors={"handle": "Unknown Error"}),))
    assert judged(GpuCount(reading, bus(A)))[f"gpu/{A}"] == (UNKNOWN, "NotReadable", NONE)


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_fails() -> None:
    assert judged(GpuCount(listed(A), bus(A, B)))[f"gpu/{B}"] == (FAIL, "GpuNotListed", REBOOT)


def test_a_gpu_that_no_driver_took_fails() -> None:
    assert judged(GpuCount(listed(A), bus(A, b="")))[f"gpu/{B}"] == (FAIL, "NoDriverBound", REBOOT)


def test_a_gpu_given_to_another_driver_is_there() -> None:
    assert judged(GpuCount(listed(A), bus(A, b="vfio-pci")), 2) == {
        f"gpu/{A}": (PASS, "Ok", NONE),
        "host": (PASS, "Ok", NONE),
    }


def test_a_gpu_whose_device_file_is_hidden_from_us_is_unknown_not_missing() -> None:
    count = GpuCount(listed(A, visible=(0,)), bus(A, B), {A: 0, B: 1})
    assert judged(count)[f"gpu/{B}"] == (UNKNOWN, "NotVisible", NONE)


@pytest.mark.parametrize(
    ("visible", "minors"), [((0, 1), {A: 0, B: 1}), (None, {A: 0, B: 1}), ((0,), {A: 0}), ((0,), {B: None})]
)
def test_a_gpu_that_is_not_known_to_be_hidden_fails(
    visible: tuple[int, ...] | None, minors: dict[str, int | None]
) -> None:
    assert judged(GpuCount(listed(A, visible=visible), bus(A, B), minors))[f"gpu/{B}"][0] is FAIL


def test_a_gpu_that_was_here_and_left_the_bus_fails() -> None:
    assert judged(GpuCount(listed(A, missing=(B,)), bus(A)))[f"gpu/{B}"] == (FAIL, "GpuMissing", REBOOT)


def test_a_gpu_that_the_kernel_driver_holds_and_the_bus_has_lost_fails() -> None:
    assert judged(GpuCount(listed(A), bus(A), {A: 0, B: 1}))[f"gpu/{B}"] == (FAIL, "GpuMissing", REBOOT)


def test_a_gpu_is_reported_once_however_many_places_miss_it() -> None:
    findings = judge(GpuCount(listed(A, missing=(B,)), bus(A, B), {B: 1}), GpucountParameters())
    assert [finding.reason for finding in findings if finding.component == f"gpu/{B}"] == ["GpuNotListed"]


@pytest.mark.parametrize(
    ("expected_count", "verdict", "fault_class"), [(1, WARN, NONE), (2, PASS, NONE), (3, FAIL, REBOOT)]
)
def test_the_number_of_gpus_is_held_against_the_expected_one(
    expected_count: int, verdict: Verdict, fault_class: FaultClass
) -> None:
    found = judged(GpuCount(listed(A, B), bus(A, B)), expected_count)["host"]
    assert (found[0], found[2]) == (verdict, fault_class)


def test_without_the_driver_the_bus_is_counted() -> None:
    assert judged(GpuCount(None, bus(A)), 2) == {"host": (FAIL, "GpuCount", REBOOT)}


def test_nothing_anywhere_and_nothing_expected_is_unknown() -> None:
    with pytest.raises(CannotTell):
        judge(GpuCount(listed()), GpucountParameters())

"""What temperatures come to."""

from pathlib import Path
from typing import Any

import pytest
from tests.checks.nvidia.on_bus import gpu_node
from tests.checks.nvidia.samples_of import changed, healthy, of

from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gputemp import GPUTEMP, GputempParameters
from muster_checks.gputemp.judge import judge, memory_margin, slowdown_margin
from muster_checks.nvidia.gpu import Gpu, Temperature

LIMITS = GputempParameters()
PASS = (Verdict.PASS, "Ok", FaultClass.NONE)
HOT, TOO_HOT = (Verdict.WARN, "Hot", FaultClass.NONE), (Verdict.FAIL, "TooHot", FaultClass.CONTACT)


def judged(**temperature: Any) -> list[tuple[Verdict, str, FaultClass]]:
    gpu = Gpu(index=0, temperature=Temperature(**temperature))
    return [(finding.verdict, finding.reason, finding.fault_class) for finding in judge(of(gpu), LIMITS)]


@pytest.mark.parametrize(
    ("t_limit", "expected"), [(58, PASS), (3, PASS), (2.9, HOT), (-1, HOT), (-2, TOO_HOT), (-9, TOO_HOT)]
)
def test_margins_since_hopper(t_limit: float, expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(gpu_c=60, t_limit_c=t_limit, slowdown_t_limit_c=-2, shutdown_t_limit_c=-8) == [expected]


@pytest.mark.parametrize(("degrees", "expected"), [(33, PASS), (88, PASS), (89, HOT), (93, TOO_HOT), (96, TOO_HOT)])
def test_degrees_before_hopper(degrees: float, expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(gpu_c=degrees, slowdown_c=93, shutdown_c=96) == [expected]


@pytest.mark.parametrize(("degrees", "reasons"), [(80, ["Ok"]), (91, ["MemoryHot"]), (95, ["MemoryHot"])])
def test_memory_is_judged_by_its_own_limit(degrees: float, reasons: list[str]) -> None:
    found = judged(gpu_c=60, slowdown_c=93, memory_c=degrees, memory_max_c=95)
    assert [reason for _, reason, _ in found] == reasons


def test_a_temperature_without_any_limit_is_only_measured() -> None:
    assert judged(gpu_c=99) == [PASS]


def test_a_gpu_that_tells_nothing_is_skipped() -> None:
    with pytest.raises(NotHere):
        judged()


def test_a_temperature_that_cannot_be_read_is_unknown() -> None:
    gpu = Gpu(index=0, errors={"temperature.gpu_c": "Unknown Error"})
    (finding,) = judge(of(gpu), LIMITS)
    assert (finding.verdict, finding.reason) == (Verdict.UNKNOWN, "NotReadable")


def test_a_limit_of_minor_note_that_cannot_be_read_does_not_hide_the_margin() -> None:
    gpu = changed(healthy(), errors={"temperature.memory_max_c": "Unknown Error"})
    assert [finding.verdict for finding in judge(of(gpu), LIMITS)] == [Verdict.PASS]


def test_margins_need_both_their_ends() -> None:
    assert slowdown_margin(Temperature(t_limit_c=10)) is None
    assert slowdown_margin(Temperature(gpu_c=10)) is None
    assert slowdown_margin(Temperature(t_limit_c=10, gpu_c=50, slowdown_c=90)) == 40
    assert memory_margin(Temperature(memory_c=10)) is None


async def test_a_node_is_judged_by_its_reading(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, of(changed(healthy(), temperature={"t_limit_c": -3.0, "gpu_c": 90.0})))
    result = await run_probe(GPUTEMP, view, LIMITS)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "TooHot")
    assert "90 °C" in result.message

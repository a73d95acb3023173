"""What holds clocks down, and when that is a fault."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.checks.nvidia.on_bus import Clock, answer, gpu_node
from tests.checks.nvidia.samples_of import changed, healthy, numbered, of, series

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpupower import GPUPOWER, GpupowerParameters
from muster_checks.gpupower.judge import counters, judge
from muster_checks.nvidia.gpu import ClocksEvent, Gpu

LIMITS = GpupowerParameters()
BRAKE, THERMAL, SLOWDOWN = ClocksEvent.HW_POWER_BRAKE, ClocksEvent.HW_THERMAL, ClocksEvent.HW_SLOWDOWN


def with_events(*events: ClocksEvent) -> Gpu:
    return changed(healthy(), clocks={"events": events})


def judged(*gpus: Gpu, counted: dict[str, CounterSeries] | None = None) -> list[tuple[Verdict, str]]:
    return [(finding.verdict, finding.reason) for finding in judge(of(*gpus), counted or {}, LIMITS)]


def seen(event: ClocksEvent, *on: float) -> dict[str, CounterSeries]:
    return series(**{f"{healthy().component} on {event}": [(60.0 * place, value) for place, value in enumerate(on)]})


def held(event: ClocksEvent, *points: tuple[float, float]) -> dict[str, CounterSeries]:
    return series(**{f"{healthy().component} held {event}": points})


@pytest.mark.parametrize(
    "event",
    [
        ClocksEvent.IDLE,
        ClocksEvent.APPLICATION_CLOCKS,
        ClocksEvent.SW_POWER_CAP,
        ClocksEvent.SYNC_BOOST,
        ClocksEvent.DISPLAY_CLOCKS,
    ],
)
def test_how_a_gpu_works_is_no_fault(event: ClocksEvent) -> None:
    assert judged(with_events(event)) == [(Verdict.PASS, "Ok")]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((SLOWDOWN,), "HwSlowdown"),
        ((SLOWDOWN, THERMAL), "HwThermalSlowdown"),
        ((SLOWDOWN, BRAKE), "HwPowerBrake"),
        ((SLOWDOWN, THERMAL, BRAKE), "HwPowerBrake"),
    ],
)
def test_a_hardware_slowdown_seen_once_warns_with_its_cause(events: Sequence[ClocksEvent], reason: str) -> None:
    assert judged(with_events(*events)) == [(Verdict.WARN, reason)]


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ((1.0,), Verdict.WARN),
        ((0.0, 1.0), Verdict.WARN),
        ((1.0, 1.0), Verdict.FAIL),
        ((0.0, 1.0, 1.0, 1.0), Verdict.FAIL),
    ],
)
def test_a_hardware_slowdown_seen_twice_running_fails(samples: Sequence[float], verdict: Verdict) -> None:
    assert judged(with_events(SLOWDOWN), counted=seen(SLOWDOWN, *samples)) == [(verdict, "HwSlowdown")]


def test_one_that_is_over_passes() -> None:
    assert judged(with_events(ClocksEvent.IDLE), counted=seen(SLOWDOWN, 1.0, 1.0, 0.0)) == [(Verdict.PASS, "Ok")]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, (Verdict.PASS, "Ok")),
        (5.0, (Verdict.PASS, "Ok")),
        (7.0, (Verdict.WARN, "HwThermalSlowdown")),
        (60.0, (Verdict.WARN, "HwThermalSlowdown")),
        (61.0, (Verdict.FAIL, "HwThermalSlowdown")),
    ],
)
def test_the_time_held_within_ten_minutes_is_judged_by_its_share(seconds: float, expected: tuple[Verdict, str]) -> None:
    counted = held(THERMAL, (0, 0), (1000, 90), (1600, 90 + seconds))
    assert judged(with_events(), counted=counted) == [expected]


def test_a_share_of_less_than_a_minute_is_not_judged() -> None:
    assert judged(with_events(), counted=held(BRAKE, (0, 0), (2, 2))) == [(Verdict.PASS, "Ok")]


def test_a_gpu_that_was_always_at_its_power_cap_is_sound() -> None:
    counted = held(ClocksEvent.SW_POWER_CAP, (0, 0), (600, 600))
    (finding,) = judge(of(with_events(ClocksEvent.SW_POWER_CAP)), counted, LIMITS)
    assert finding.verdict is Verdict.PASS
    assert ("share_sw_power_cap", 1.0) in [(m.name, m.value) for m in finding.measurements]


def test_a_slowdown_by_the_driver_for_heat_warns() -> None:
    assert judged(with_events(ClocksEvent.SW_THERMAL)) == [(Verdict.WARN, "SwThermalSlowdown")]


@pytest.mark.parametrize(("watts", "verdict"), [(700.0, Verdict.PASS), (670.0, Verdict.PASS), (500.0, Verdict.WARN)])
def test_a_power_limit_below_that_of_its_equals_warns(watts: float, verdict: Verdict) -> None:
    gpus = numbered(healthy(), 0, 1, 2)
    gpus[1] = changed(gpus[1], power={"limit_w": watts})
    assert judged(*gpus)[1][0] is verdict
    assert judged(*gpus)[0] == (Verdict.PASS, "Ok")


def test_other_models_and_lost_gpus_are_no_equals() -> None:
    gpus = numbered(healthy(), 0, 1, 2, 3)
    gpus[1] = changed(gpus[1], power={"limit_w": 72.0}, name="NVIDIA L4")
    gpus[2] = changed(gpus[2], lost="GPU is lost")
    assert judged(*gpus)[1] == (Verdict.PASS, "Ok")


def test_persistence_mode_that_is_off_warns() -> None:
    assert judged(changed(healthy(), persistence=False)) == [(Verdict.WARN, "PersistenceOff")]


def test_a_power_draw_that_cannot_be_read_is_unknown() -> None:
    assert judged(changed(healthy(), errors={"power.draw_w": "Unknown Error"})) == [(Verdict.UNKNOWN, "NotReadable")]


def test_a_gpu_that_does_not_say_is_skipped() -> None:
    with pytest.raises(NotHere):
        judged(Gpu(index=0))


def test_a_failure_asks_for_a_person() -> None:
    (finding,) = judge(of(with_events(SLOWDOWN)), seen(SLOWDOWN, 1.0, 1.0), LIMITS)
    assert finding.fault_class is FaultClass.CONTACT


def test_lost_and_silent_gpus_are_not_counted() -> None:
    assert counters(of(Gpu(index=0), changed(healthy(), lost="GPU is lost"))) == {}
    assert counters(of(with_events(SLOWDOWN)))[f"{healthy().component} on {SLOWDOWN}"] == 1.0


async def test_one_reading_looked_at_twice_is_seen_once(tmp_path: Path) -> None:
    clock = Clock()
    said = [with_events(SLOWDOWN), with_events(ClocksEvent.IDLE)]
    view = gpu_node(tmp_path, lambda _: answer(of(said.pop(0))), clock=clock)
    view.history.note("gpupower", {})
    clock.now += 60
    assert (await run_probe(GPUPOWER, view, LIMITS)).verdict is Verdict.WARN
    clock.now += 5  # somebody asks while the reading is still shared
    assert (await run_probe(GPUPOWER, view, LIMITS)).verdict is Verdict.PASS


async def test_a_slowdown_that_lasts_fails_at_the_second_look(tmp_path: Path) -> None:
    clock = Clock()
    said = [with_events(SLOWDOWN), with_events(SLOWDOWN), with_events(ClocksEvent.IDLE)]
    view = gpu_node(tmp_path, lambda _: answer(of(said.pop(0))), clock=clock)
    view.history.note("gpupower", {})  # not its first run: nothing is read twice
    verdicts = []
    for _ in range(3):
        verdicts.append((await run_probe(GPUPOWER, view, LIMITS)).verdict)
        clock.now += 60
    assert verdicts == [Verdict.WARN, Verdict.FAIL, Verdict.PASS]

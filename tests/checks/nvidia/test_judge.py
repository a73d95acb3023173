"""What the checks on one reading share."""

import asyncio
from pathlib import Path

import pytest
from tests.checks.nvidia.on_bus import Clock, answer, calls, gpu_node
from tests.checks.nvidia.samples_of import of

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.judge import gpu_finding, judge_each, judge_unread, read_counted

GPU = Gpu(index=3, address="0000:3b:00.0", name="NVIDIA L4")


def sound(gpu: Gpu) -> list[Finding]:
    return [gpu_finding(gpu, Verdict.PASS, "Ok", "sound")]


def test_a_finding_names_its_gpu() -> None:
    (finding,) = sound(GPU)
    assert (finding.component, finding.message) == ("gpu/0000:3b:00.0", "GPU 3 (0000:3b:00.0, NVIDIA L4): sound")
    assert gpu_finding(Gpu(index=3), Verdict.PASS, "Ok", "sound").component == "gpu/index-3"


def test_lost_and_missing_gpus_are_unknown_and_the_others_judged() -> None:
    reading = of(GPU, Gpu(index=4, address="0000:4b:00.0", lost="GPU is lost"), missing=["0000:5b:00.0"])
    findings = judge_each(reading, sound, "nothing")
    assert [(finding.component, finding.verdict, finding.reason) for finding in findings] == [
        ("gpu/0000:3b:00.0", Verdict.PASS, "Ok"),
        ("gpu/0000:4b:00.0", Verdict.UNKNOWN, "GpuLost"),
        ("gpu/0000:5b:00.0", Verdict.UNKNOWN, "GpuMissing"),
    ]


def test_gpus_that_give_no_finding_are_skipped_with_the_reason() -> None:
    with pytest.raises(NotHere, match="no GPU here has ECC"):
        judge_each(of(GPU), lambda _: [], "no GPU here has ECC")


def test_a_driver_that_lists_no_gpu_is_unknown() -> None:
    with pytest.raises(CannotTell, match="lists no GPU"):
        judge_each(of(), sound, "nothing")


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({}, None),
        ({"power.draw_w": "Unknown Error"}, None),
        ({"ecc.sram": "Unknown Error"}, "ecc.sram: Unknown Error"),
        ({"handle": "Insufficient Permissions"}, "handle: Insufficient Permissions"),
        ({"eccentric": "Unknown Error"}, None),
    ],
)
def test_what_could_not_be_read_is_one_unknown_finding(errors: dict[str, str], told: str | None) -> None:
    findings = judge_unread(Gpu(index=0, errors=errors), "ecc")
    assert [finding.verdict for finding in findings] == ([] if told is None else [Verdict.UNKNOWN])
    assert told is None or told in findings[0].message


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that goes on by what is slept."""
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("muster_checks.base.counter_history.asyncio.sleep", sleep)
    return clock


def minors(reading: GpuReading) -> dict[str, float]:
    return {"minor": float(reading.gpus[0].minor or 0)}


def counting_node(root: Path, clock: Clock) -> NodeView:
    """Its readings have the minor 0, 1, 2, …"""
    serial = iter(range(100))
    return gpu_node(
        root, lambda _: answer(GpuReading(source="nvml", gpus=(Gpu(index=0, minor=next(serial)),))), clock=clock
    )


async def test_the_first_run_compares_two_readings_and_a_later_one_needs_one(tmp_path: Path, slept: Clock) -> None:
    view = counting_node(tmp_path, slept)
    reading, series = await read_counted(view, "x", minors)
    assert reading.gpus[0].minor == 1
    assert series["minor"].rise(60).amount == 1
    slept.now += 60
    reading, series = await read_counted(view, "x", minors)
    assert (reading.gpus[0].minor, series["minor"].latest, len(calls(view))) == (2, 2.0, 3)


async def test_two_runs_that_share_a_reading_count_it_once(tmp_path: Path, slept: Clock) -> None:
    """A request with other parameters beside the periodic run: one reading is not two consecutive ones."""
    view = counting_node(tmp_path, slept)
    await read_counted(view, "x", minors)
    slept.now += 60
    runs = await asyncio.gather(*(read_counted(view, "x", minors) for _ in range(2)))
    assert runs[0][0] is runs[1][0]
    assert [len(series["minor"].points) for _, series in runs] == [3, 3]

"""Where GPUs are looked for, and how often."""

from pathlib import Path

import pytest
from tests.checks.nvidia.on_bus import CHILD, answer, calls, failure, gpu_node, put_gpus

from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Verdict
from muster_checks.gpucount import GPUCOUNT, GpucountParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.testing.recorded import hung, lay_out, node

A, B = "0000:0a:00.0", "0000:0b:00.0"
AT_ONCE = GpucountParameters(confirm_after_s=0.0)


def listed(*addresses: str) -> GpuReading:
    return GpuReading(source="nvml", gpus=tuple(Gpu(index=i, address=address) for i, address in enumerate(addresses)))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    monkeypatch.setattr("muster_checks.gpucount.probe.asyncio.sleep", sleep)
    return naps


async def test_a_sound_node_is_read_once(tmp_path: Path, slept: list[float]) -> None:
    view = gpu_node(tmp_path, listed(A, B), A, B)
    assert (await run_probe(GPUCOUNT, view, GpucountParameters())).verdict is Verdict.PASS
    assert (slept, len(calls(view))) == ([], 1)


async def test_a_gpu_that_is_back_after_its_reset_was_never_missing(tmp_path: Path, slept: list[float]) -> None:
    said = [answer(listed(A)), answer(listed(A, B))]
    view = gpu_node(tmp_path, lambda _: said.pop(0), A, B)
    assert (await run_probe(GPUCOUNT, view, GpucountParameters())).verdict is Verdict.PASS
    assert slept == [10.0]


async def test_a_gpu_that_is_missing_twice_fails(tmp_path: Path, slept: list[float]) -> None:
    view = gpu_node(tmp_path, lambda _: answer(listed(A)), A, B)
    result = await run_probe(GPUCOUNT, view, GpucountParameters())
    assert (result.verdict, result.findings[0].component) == (Verdict.FAIL, f"gpu/{B}")
    assert len(calls(view)) == 2


async def test_device_numbers_come_from_proc(tmp_path: Path) -> None:
    reading = GpuReading(source="nvml", gpus=listed(A).gpus, visible=(0,))
    view = gpu_node(tmp_path, reading, A, B)
    for minor, address in enumerate((A, B)):
        text = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No"
        lay_out(tmp_path, {f"/proc/driver/nvidia/gpus/{address}/information": text})
    result = await run_probe(GPUCOUNT, view, AT_ONCE)
    assert [(f.component, f.reason) for f in result.findings if f.verdict is Verdict.UNKNOWN] == [
        (f"gpu/{B}", "NotVisible")
    ]


async def test_a_gpu_that_the_driver_was_told_to_leave_alone_is_not_missing(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, listed(A), A, B)
    lay_out(tmp_path, {f"/proc/driver/nvidia/gpus/{B}/information": "Device Minor: \t 1\nGPU Excluded:\t Yes"})
    assert (await run_probe(GPUCOUNT, view, AT_ONCE)).verdict is Verdict.PASS


async def test_what_proc_does_not_say_hides_nothing(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, GpuReading(source="nvml", gpus=listed(A).gpus, visible=(0,)), A, B)
    lay_out(tmp_path, {f"/proc/driver/nvidia/gpus/{B}/information": "Device Minor: \t many"})
    assert (await run_probe(GPUCOUNT, view, AT_ONCE)).findings[0].reason == "GpuNotListed"


async def test_a_node_without_gpus_is_skipped(tmp_path: Path) -> None:
    result = await run_probe(GPUCOUNT, node(tmp_path), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")


async def test_a_node_that_should_have_gpus_and_has_none_fails(tmp_path: Path) -> None:
    result = await run_probe(GPUCOUNT, node(tmp_path), GpucountParameters(expected_count=8, confirm_after_s=0))
    assert (result.verdict, result.findings[0].component, result.reason) == (Verdict.FAIL, "host", "GpuCount")


async def test_gpus_that_all_left_the_bus_fail_by_their_addresses(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, listed(A), A)
    assert (await run_probe(GPUCOUNT, view, AT_ONCE)).verdict is Verdict.PASS
    for file in (tmp_path / f"sys/bus/pci/devices/{A}").iterdir():
        file.unlink()
    view.history.clock.now += 60  # type: ignore[attr-defined] # the test's clock
    result = await run_probe(GPUCOUNT, view, AT_ONCE)
    assert (result.verdict, result.findings[0].component, result.reason) == (Verdict.FAIL, f"gpu/{A}", "GpuMissing")


@pytest.mark.parametrize("child", [hung(CHILD), failure(9, "Driver Not Loaded")])
async def test_a_driver_that_gives_no_list_is_unknown_while_the_bus_is_complete(tmp_path: Path, child: bytes) -> None:
    view = gpu_node(tmp_path, child, A)
    assert (await run_probe(GPUCOUNT, view, AT_ONCE)).verdict is Verdict.UNKNOWN


async def test_a_driver_that_gives_no_list_does_not_hide_a_missing_gpu(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, failure(9, "Driver Not Loaded"), A)
    result = await run_probe(GPUCOUNT, view, GpucountParameters(expected_count=2, confirm_after_s=0))
    assert (result.verdict, result.reason) == (Verdict.FAIL, "GpuCount")


async def test_a_driver_that_gives_no_list_says_nothing_of_gpus_found_lost_before(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, failure(9, "Driver Not Loaded"), A)
    result = await run_probe(GPUCOUNT, view, GpucountParameters(expected_count=2, confirm_after_s=0))
    # an UNKNOWN host keeps open what the run could not look at
    assert ("host", Verdict.UNKNOWN, "DriverNotLoaded") in [(f.component, f.verdict, f.reason) for f in result.findings]


async def test_a_gpu_without_a_driver_fails_beside_one_with(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, listed(A), A)
    put_gpus(tmp_path, B, driver="")
    assert (await run_probe(GPUCOUNT, view, AT_ONCE)).findings[0].reason == "NoDriverBound"

"""The check ``gpumem`` as it is run: real children on a CUDA driver made for tests."""

import sys
from pathlib import Path

import msgspec
import pytest
from tests.checks.bad_input import TEXTS
from tests.checks.cuda.fake_driver import Commands, address, gpu_node

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Result, Verdict
from muster_checks.gpumem import GPUMEM, GpumemParameters
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.registry import load_registry
from muster_checks.testing.recorded import node

NVML = f"{sys.executable} -X utf8 -P -m muster_checks.nvidia.nvml_child"
SAMPLE = Path(__file__).parent / "samples" / "arithmetic.jsonl"


async def run(view: NodeView, **parameters: object) -> Result:
    return await run_probe(GPUMEM, view, GpumemParameters.model_validate(parameters))


def by_address(result: Result) -> list[str]:
    """Verdicts of the GPUs in the order of their addresses."""
    worst = {finding.component: finding.verdict.value for finding in reversed(result.findings)}
    return [verdict for _, verdict in sorted(worst.items())]


async def test_eight_sound_gpus_pass(library: Path, tmp_path: Path) -> None:
    assert by_address(await run(gpu_node(tmp_path, 8))) == ["PASS"] * 8


@pytest.mark.parametrize("kernel", ["daxpy", "dgemm", "memory_write"])
async def test_the_gpu_that_corrupts_a_result_fails(library: Path, tmp_path: Path, kernel: str) -> None:
    result = await run(gpu_node(tmp_path, 3, wrong=f"1:{kernel}"))
    assert by_address(result) == ["PASS", "FAIL", "PASS"]
    worst = result.findings[0]
    assert (worst.component, worst.reason, worst.fault_class) == (
        f"gpu/{address(1)}",
        "WrongResult",
        FaultClass.REPLACE,
    )


async def test_one_gpu_is_tested_alone_and_no_context_is_made_on_the_others(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 3, wrong="1:daxpy", error="0:cuDevicePrimaryCtxRetain:1")
    assert by_address(await run(view, gpu=address(2))) == ["PASS"]
    assert by_address(await run(view, gpu=address(1).upper())) == ["FAIL"]
    assert by_address(await run(view, gpu=address(0))) == ["UNKNOWN"]


async def test_one_gpu_whose_driver_crashes_is_unknown_and_tried_once(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 3, crash=1)
    assert by_address(await run(view, gpu=address(1))) == ["UNKNOWN"]
    calls = [argv for argv, _ in view.commands.calls if "muster_checks.cuda.arithmetic" in argv]  # type: ignore[attr-defined]
    assert len(calls) == 1


async def test_a_gpu_that_is_not_there_proves_nothing(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 1), gpu="0000:ff:00.0")
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NoSuchGpu")


async def test_the_slow_gpu_fails(library: Path, tmp_path: Path) -> None:
    assert by_address(await run(gpu_node(tmp_path, 4, slow=2))) == ["PASS", "PASS", "FAIL", "PASS"]


@pytest.mark.parametrize("settings", [{"error": "1:cuMemAlloc:2"}, {"crash": 1}])
async def test_a_gpu_that_cannot_be_had_is_unknown_and_the_others_are_judged(
    library: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    assert by_address(await run(gpu_node(tmp_path, 3, **settings))) == ["PASS", "UNKNOWN", "PASS"]


async def test_a_memory_error_that_the_driver_reports_fails(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 2, error="0:cuLaunchKernel:214"))
    assert (result.reason, by_address(result)) == ("UncorrectableMemory", ["FAIL", "PASS"])


async def test_as_much_memory_is_tested_as_asked(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path)
    await run(view, memory_share=0.5)
    assert isinstance(view.commands, Commands)
    assert view.commands.calls[-1][0][-2:] == ("--memory-share", "0.5")


async def test_a_slow_gpu_that_somebody_uses_is_unknown(library: Path, tmp_path: Path) -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, address=address(0), memory_used_mib=9000.0),))
    result = await run(gpu_node(tmp_path, 1, {NVML: msgspec.json.encode({"reading": reading})}, slow=0))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "InUse")


async def test_a_gpu_that_the_driver_does_not_offer_is_unknown(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 2)
    assert isinstance(view.commands, Commands)
    view.commands.settings["FAKE_COUNT"] = "1"
    assert by_address(await run(view)) == ["PASS", "UNKNOWN"]


async def test_a_driver_that_offers_no_gpu_is_unknown(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 1, init=100))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NoCudaDevice")
    assert "CUDA_ERROR_NO_DEVICE" in result.message


async def test_no_driver_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    result = await run(gpu_node(tmp_path / "root", 1))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "libcuda1" in result.message


async def test_a_node_without_gpus_is_left_out(tmp_path: Path) -> None:
    assert (await run(node(tmp_path))).verdict is Verdict.SKIP


def recorded(text: bytes) -> Result | None:
    return run_recorded(GPUMEM, text, GpumemParameters())


def test_recorded_lines_of_a_child_are_judged() -> None:
    result = recorded(SAMPLE.read_bytes())
    assert result is not None
    assert by_address(result) == ["PASS", "FAIL", "UNKNOWN"]


@pytest.mark.parametrize("text", [*TEXTS, b'{"type":"begun","index":0,"count":1,"address":"a","name":"b"}\n'])
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert recorded(text) is None


def test_the_check_is_shipped() -> None:
    assert load_registry(())["gpumem"] is GPUMEM

"""The children on a CUDA driver made for tests: in this process, and as processes that may hang and crash."""

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checks.cuda.fake_driver import address, gpu_node
from tests.wording.facts import missing_facts

from muster_checks.cuda import arithmetic, copies
from muster_checks.cuda.child import UNAVAILABLE, bind_to_cpus, main, parse_cpus, parser
from muster_checks.cuda.driver import CudaDevice, CudaDriver, CudaError
from muster_checks.cuda.launcher import GpuRuns, run_on_each_gpu
from muster_checks.cuda.protocol import ArithmeticResult, CopyResult, GpuFailure, GpuStart, Line, NoUsableGpu


@pytest.fixture(autouse=True)
def untouched_process() -> Iterator[None]:
    """A child binds itself to CPUs and sets an alarm; here it is this process."""
    allowed = os.sched_getaffinity(0)
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGALRM)
    yield
    os.sched_setaffinity(0, allowed)
    signal.signal(signal.SIGALRM, handler)
    os.environ.clear()
    os.environ.update(environment)


def told(library: Path, monkeypatch: pytest.MonkeyPatch, module: str, **settings: object) -> tuple[int, list[Line]]:
    """Exit code and lines of a child in this process."""
    for name, value in settings.items():
        monkeypatch.setenv(f"FAKE_{name.upper()}", str(value))
    lines: list[Line] = []
    work = copies.measure_copies if module == "copies" else arithmetic.compute
    arguments = argparse.Namespace(
        only="", first=0, per_gpu_s=30.0, root=Path("/nowhere"), library=str(library), memory_share=0.9
    )
    return main(work, arguments, lines.append), lines


def test_copies_are_told_in_gb_per_s(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = told(library, monkeypatch, "copies", name="NVIDIA H200")
    assert code == 0
    assert lines[0] == GpuStart(0, 1, address(0), "NVIDIA H200")
    assert isinstance(lines[1], CopyResult)
    assert lines[1].to_device_gb_per_s == pytest.approx(25, rel=1e-3)
    assert lines[1].from_device_gb_per_s == pytest.approx(25, rel=1e-3)


def test_arithmetic_is_told_with_its_rates_and_nothing_wrong(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = told(library, monkeypatch, "arithmetic")
    found = lines[1]
    assert isinstance(found, ArithmeticResult)
    assert found.daxpy_gb_per_s == pytest.approx(2000, rel=1e-3)
    assert found.dgemm_gflop_per_s == pytest.approx(10_000, rel=1e-3)
    assert found.tested_bytes == pytest.approx(0.9 * (1 << 20), abs=64)
    assert found.wrong == ()


@pytest.mark.parametrize(
    ("kernel", "test", "first"), [("daxpy", "daxpy", 7), ("dgemm", "dgemm", 67), ("memory_write", "memory", 336)]
)
def test_a_wrong_result_is_told_and_run_again(
    library: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, test: str, first: int
) -> None:
    _, lines = told(library, monkeypatch, "arithmetic", wrong=f"0:{kernel}")
    found = lines[1]
    assert isinstance(found, ArithmeticResult)
    (wrong,) = found.wrong
    assert (wrong.test, wrong.first) == (test, first)
    assert 0 < wrong.count < wrong.of
    assert wrong.again > 0


def test_a_result_that_was_wrong_once_says_so(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = told(library, monkeypatch, "arithmetic", wrong="0:memory_write", wrong_times=1)
    assert isinstance(lines[1], ArithmeticResult)
    assert [(wrong.count, wrong.again) for wrong in lines[1].wrong] == [(1, 0)]


def test_memory_in_many_pieces_is_tested_all_the_same(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = told(library, monkeypatch, "arithmetic", piece_kib=600, wrong="0:memory_write", wrong_times=3)
    found = lines[1]
    assert isinstance(found, ArithmeticResult)
    assert found.tested_bytes == pytest.approx(0.9 * (1 << 20), abs=64)
    assert [(wrong.count, wrong.first) for wrong in found.wrong] == [(3, 336)]


def test_memory_that_cannot_be_had_at_all_is_not_tested(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = told(library, monkeypatch, "arithmetic", free_mib=0.05)
    assert isinstance(lines[1], GpuFailure)


def test_nothing_is_left_allocated(
    library: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told(library, monkeypatch, "arithmetic", count=2)
    told(library, monkeypatch, "copies", error="0:cuEventSynchronize:214")
    assert capfd.readouterr().err == ""


def test_a_gpu_without_memory_is_told_by_the_drivers_name_for_it(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lines = told(library, monkeypatch, "copies", count=3, error="1:cuMemAlloc:2")
    assert lines[3] == GpuFailure(1, "cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
    assert isinstance(lines[5], CopyResult)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        ("0:cuDevicePrimaryCtxRetain:46", GpuFailure(0, "cuDevicePrimaryCtxRetain", "CUDA_ERROR_DEVICE_UNAVAILABLE")),
        ("0:cuMemHostAlloc:2", GpuFailure(0, "cuMemHostAlloc", "CUDA_ERROR_OUT_OF_MEMORY")),
        ("0:cuEventSynchronize:214", GpuFailure(0, "cuEventSynchronize", "CUDA_ERROR_ECC_UNCORRECTABLE")),
        ("0:cuEventSynchronize:4711", GpuFailure(0, "cuEventSynchronize", "error 4711")),
    ],
)
def test_what_the_driver_refuses_is_told(
    library: Path, monkeypatch: pytest.MonkeyPatch, error: str, failed: GpuFailure
) -> None:
    assert told(library, monkeypatch, "copies", error=error)[1][-1] == failed


@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuLaunchKernel"])
def test_a_refused_kernel_is_told(library: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    _, lines = told(library, monkeypatch, "arithmetic", error=f"0:{function}:218")
    assert lines[-1] == GpuFailure(0, function, "CUDA_ERROR_INVALID_PTX")


def test_a_gpu_that_has_no_address_is_told_without_one(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(library, monkeypatch, "copies", error="0:cuDeviceGet:101")[1] == [
        GpuFailure(0, "cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE")
    ]


def test_a_driver_without_gpus_is_unavailable(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(library, monkeypatch, "copies", init=100) == (
        UNAVAILABLE,
        [NoUsableGpu("cuInit: CUDA_ERROR_NO_DEVICE")],
    )


def test_no_library_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, (line,) = told(tmp_path / "libcuda.so.1", monkeypatch, "copies")
    assert code == UNAVAILABLE
    assert isinstance(line, NoUsableGpu)
    assert "libcuda.so.1" in line.message


def test_a_library_that_is_no_driver_is_an_error() -> None:
    with pytest.raises(CudaError, match=r"\bcuInit\b"):
        CudaDriver("libc.so.6")


def test_every_gpu_has_its_time_anew(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_COUNT", "3")
    left_s = []

    def work(_: CudaDevice, index: int, __: argparse.Namespace) -> Line:
        left_s.append(signal.getitimer(signal.ITIMER_REAL)[0])
        signal.setitimer(signal.ITIMER_REAL, 5.0)  # as if this one had taken long
        return GpuFailure(index, "", "")

    main(work, parser().parse_args(["--per-gpu-s", "60", "--library", str(library)]), lambda _: None)
    assert all(seconds > 50 for seconds in left_s)
    assert len(left_s) == 3
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_every_gpu_is_looked_at_whatever_the_environment_hides(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    told(library, monkeypatch, "copies", count=2)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_child_stays_on_the_cpus_of_its_gpu(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    folder = tmp_path / "sys/bus/pci/devices" / address(0)
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(f"{one}\n")
    bind_to_cpus(address(0), tmp_path)
    assert os.sched_getaffinity(0) == {one}


@pytest.mark.parametrize("content", [None, "", "no cpus", "100000"])
def test_cpus_that_cannot_be_had_change_nothing(tmp_path: Path, content: str | None) -> None:
    allowed = os.sched_getaffinity(0)
    folder = tmp_path / "sys/bus/pci/devices" / address(0)
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "local_cpulist").write_text(content)
    bind_to_cpus(address(0), tmp_path)
    assert os.sched_getaffinity(0) == allowed


def test_a_cpu_list_has_ranges() -> None:
    assert parse_cpus("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}


def test_a_child_goes_through_all_gpus_by_default() -> None:
    arguments = parser().parse_args([])
    assert (arguments.first, arguments.library, arguments.root) == (0, "libcuda.so.1", Path("/"))


# from here on children are processes

pytestmark_library = pytest.mark.usefixtures("library")


async def swept(tmp_path: Path, module: str, per_gpu_s: float = 60.0, **settings: object) -> GpuRuns:
    count = int(str(settings.pop("count", 8)))
    node = gpu_node(tmp_path, count, **settings)
    return await run_on_each_gpu(node, module, per_gpu_s=per_gpu_s, total_s=120.0)


@pytestmark_library
@pytest.mark.parametrize(("module", "kind"), [("copies", CopyResult), ("arithmetic", ArithmeticResult)])
async def test_eight_gpus_are_measured_by_one_child(tmp_path: Path, module: str, kind: type) -> None:
    sweep = await swept(tmp_path, module)
    assert [gpu.address for gpu in sweep.gpus] == [address(index) for index in range(8)]
    assert all(isinstance(gpu.result, kind) for gpu in sweep.gpus)
    assert sweep.rest == ""


@pytestmark_library
async def test_a_gpu_that_hangs_costs_only_itself(tmp_path: Path) -> None:
    sweep = await swept(tmp_path, "copies", per_gpu_s=10.0, hang=5)
    assert missing_facts(sweep.gpus[5].trouble, "10 s") == []
    assert [gpu.index for gpu in sweep.gpus if gpu.result is None] == [5]
    assert len(sweep.gpus) == 8


@pytestmark_library
async def test_a_gpu_that_crashes_the_driver_costs_only_itself(tmp_path: Path) -> None:
    sweep = await swept(tmp_path, "arithmetic", crash=7)
    assert "SIGSEGV" in sweep.gpus[7].trouble
    assert [gpu.index for gpu in sweep.gpus if gpu.result is None] == [7]


@pytestmark_library
async def test_what_comes_to_nothing_is_told_by_its_driver(tmp_path: Path) -> None:
    sweep = await swept(tmp_path, "copies", error="2:cuDevicePrimaryCtxRetain:46")
    gpu = sweep.gpus[2]
    assert gpu.error == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert missing_facts(gpu.trouble, "cuDevicePrimaryCtxRetain", "CUDA_ERROR_DEVICE_UNAVAILABLE") == []


async def test_no_driver_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    sweep = await swept(tmp_path / "root", "copies")
    assert sweep.gpus == ()
    assert sweep.rest.startswith("libcuda.so.1: ")

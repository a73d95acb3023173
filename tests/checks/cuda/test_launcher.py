"""What children say, and what becomes of a node's GPUs when they do not come to an end."""

import json
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json, huge
from tests.checks.cuda.fake_driver import address, gpu_node
from tests.wording.facts import missing_facts

from muster_checks.base.commands import Output
from muster_checks.base.counter_history import History
from muster_checks.base.declaration import NodeView
from muster_checks.cuda.busy_gpus import find_busy_gpus, of
from muster_checks.cuda.launcher import RESTARTS_LIMIT, GpuRun, GpuRuns, read_runs, run_on_each_gpu
from muster_checks.cuda.protocol import CopyResult, GpuFailure, GpuStart, Line, NoUsableGpu, decode, encode
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.testing.recorded import RecordedCommands


def lines_of(*lines: Line) -> bytes:
    return b"".join(encode(line) for line in lines)


def begun(index: int, count: int = 8) -> GpuStart:
    return GpuStart(index, count, f"0000:{0x18 + 0x10 * index:02X}:00.0", "NVIDIA H200")


class Children(RecordedCommands):
    """One answer after the other."""

    def __init__(self, *answers: Output | bytes) -> None:
        super().__init__({})
        self.left = list(answers)

    async def run(self, argv: object, **options: object) -> Output:  # type: ignore[override] # no caller is so particular
        line = tuple(str(word) for word in argv)  # type: ignore[attr-defined]
        self.calls.append((line, float(str(options["timeout_s"]))))
        answer = self.left.pop(0)
        return answer if isinstance(answer, Output) else Output(argv=line, exit_code=0, stdout=answer)


async def swept(*answers: Output | bytes, history: History | None = None) -> tuple[GpuRuns, Children]:
    children = Children(*answers)
    node = NodeView(commands=children, history=history or History())
    return await run_on_each_gpu(node, "copies", per_gpu_s=60.0, total_s=300.0), children


def died(text: bytes, of: int = signal.SIGKILL) -> Output:
    return Output(argv=("python3",), exit_code=-of, stdout=text)


def first_of(call: tuple[tuple[str, ...], float]) -> str:
    return call[0][call[0].index("--first") + 1]


async def test_a_child_that_died_is_started_again_behind_its_gpu() -> None:
    sweep, children = await swept(
        died(lines_of(begun(0), CopyResult(0, 25.0, 26.0), begun(1))), lines_of(begun(2, 3), CopyResult(2, 24.0, 24.0))
    )
    assert [first_of(call) for call in children.calls] == ["0", "2"]
    assert [gpu.result is not None for gpu in sweep.gpus] == [True, False, True]
    assert missing_facts(sweep.gpus[1].trouble, "python3", "SIGKILL") == []
    assert msgspec.structs.replace(sweep.gpus[1], trouble="") == GpuRun(1, address(1), "NVIDIA H200")


async def test_a_driver_that_broke_with_its_child_leaves_the_rest_unknown() -> None:
    broken = Output(argv=("python3",), exit_code=3, stdout=lines_of(NoUsableGpu("cuInit: CUDA_ERROR_UNKNOWN")))
    sweep, _ = await swept(died(lines_of(begun(0))), broken)
    assert len(sweep.gpus) == 1
    assert sweep.rest == "cuInit: CUDA_ERROR_UNKNOWN"


async def test_a_child_that_dies_before_the_first_gpu_is_not_started_again() -> None:
    sweep, children = await swept(died(b"", signal.SIGSEGV))
    assert sweep.gpus == ()
    assert missing_facts(sweep.rest, "python3", "SIGSEGV") == []
    assert len(children.calls) == 1


async def test_a_child_that_says_nothing_says_so() -> None:
    sweep, _ = await swept(Output(argv=("python3",), exit_code=None))
    assert sweep.gpus == ()
    assert sweep.rest


async def test_gpus_that_are_not_reached_in_time_are_told() -> None:
    now = iter([0.0, 0.0, 301.0])
    late = Output(argv=("python3",), timed_out=True, stdout=lines_of(begun(0)), duration_s=300.0)
    sweep, children = await swept(late, history=History(lambda: next(now)))
    assert missing_facts(sweep.gpus[0].trouble, "python3", "300 s") == []
    assert missing_facts(sweep.rest, "300 s") == []
    assert children.calls[0][1] == 300.0


async def test_children_that_always_die_come_to_an_end() -> None:
    _, children = await swept(*[died(lines_of(begun(index, 99))) for index in range(RESTARTS_LIMIT + 1)])
    assert len(children.calls) == RESTARTS_LIMIT


def test_a_failure_before_the_address_is_known_has_none() -> None:
    assert read_runs([GpuFailure(3, "cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE")], "") == [
        GpuRun(3, "", "", trouble="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE", error="CUDA_ERROR_INVALID_DEVICE")
    ]


def test_what_a_library_prints_between_the_lines_is_passed_over() -> None:
    text = b"NVIDIA: warning\n{not json}\n" + lines_of(begun(0)) + b'{"type":"copied","index":0}\n{"type":"begun"'
    assert decode(text) == [begun(0)]


@pytest.mark.parametrize("text", [*TEXTS, b'{"type":"beg\xffun"}\n', b"[" * 100_000 + b"\n", b"{" * 100_000])
def test_no_text_of_a_child_breaks_its_reader(text: bytes) -> None:
    assert read_runs(decode(text), "") == []


def test_a_child_that_prints_without_end_is_read_as_far_as_it_makes_sense() -> None:
    assert read_runs(decode(huge(lines_of(begun(0)), b"{}\n")[: 4 << 20]), "stopped") == [
        GpuRun(0, address(0), "NVIDIA H200", trouble="stopped")
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=60) | any_json().map(lambda value: json.dumps(value).encode()), max_size=5))
def test_no_line_breaks_the_reader(lines: list[bytes]) -> None:
    read_runs(decode(b"\n".join(lines)), "")


def test_lines_come_back_as_they_were() -> None:
    lines: list[Line] = [begun(0), CopyResult(0, 25.0, 26.0), GpuFailure(1, "cuMemAlloc", "x"), NoUsableGpu("no")]
    assert decode(lines_of(*lines)) == lines


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (Gpu(index=0, address="a", memory_used_mib=4.0, mig=False), None),
        (Gpu(index=0, address="a"), None),
        (Gpu(index=0, address="a", memory_used_mib=40960.0), "40960 MiB"),
        (Gpu(index=0, address="a", mig=True), "MIG"),
    ],
)
def test_a_gpu_that_others_use_is_known(gpu: Gpu, why: str | None) -> None:
    found = of(GpuReading(source="nvml", gpus=(gpu,)))
    assert found.keys() == ({"a"} if why else set())
    assert why is None or missing_facts(found["a"], why) == []


async def test_a_driver_that_does_not_say_who_uses_a_gpu_holds_up_nothing(tmp_path: Path) -> None:
    assert await find_busy_gpus(gpu_node(tmp_path, 1)) == {}


async def test_who_uses_a_gpu_is_read_from_the_driver(tmp_path: Path) -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, address=address(0), memory_used_mib=9000.0),))
    answer = msgspec.json.encode({"reading": reading})
    found = await find_busy_gpus(
        gpu_node(tmp_path, 1, {f"{sys.executable} -X utf8 -P -m muster_checks.nvidia.nvml_child": answer})
    )
    assert list(found) == [address(0)]

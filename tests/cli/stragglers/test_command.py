"""`muster stragglers`: recorded jobs get the right verdict; bad files are named with line and reason."""

import json
import os
import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.shared_data import SharedData
from tests.tainter.stragglers.recorded_jobs import mini_batches
from tests.tainter.stragglers.simulated_jobs import SimulatedJob, in_stages, slowed

from muster_cli.__main__ import main
from muster_cli.stragglers.step_table import StepTable

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"
HEAD = "rank,step,seconds\n"
STAGED = "rank,step,seconds,stage\n"
WORKED = "rank,step,seconds,work\n"


def write(file: Path, seconds: list[list[float]]) -> Path:
    lines = [f"{rank},{step},{second}" for rank, row in enumerate(seconds) for step, second in enumerate(row)]
    file.write_text(HEAD + "\n".join(lines) + "\n")
    return file


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = main(["stragglers", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def slow_rank(tmp_path: Path) -> Path:
    job = SimulatedJob(ranks=6, steps=100, noise=0.05)
    return write(tmp_path / "steps.csv", [list(row) for row in slowed(job.seconds(Random(1)), 4, 1.5, 40).seconds])


def test_recorded_job_with_one_straggler(
    tmp_path: Path, shared_data: SharedData, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = run(capsys, write(tmp_path / "job1.csv", mini_batches(shared_data, 1)))
    assert (code, answer["verdict"]) == (2, "node")
    [blamed] = answer["causes"][0]["blamed"]
    assert (blamed["rank"], blamed["since"], blamed["until"]) == (6, 181, 194)
    assert answer["causes"][0]["slowdown"] == pytest.approx(0.38, abs=0.01)
    assert blamed["p"] <= answer["falseBlame"]


@pytest.mark.parametrize(
    ("name", "code", "verdict", "blamed"),
    [
        ("AR", 2, "node", [{"dp_rank": 0, "stage": 0, "rank": 0}]),
        ("SE", 1, "data", []),
        ("ST", 1, "stage", [{"stage": 3}]),
    ],
)
def test_recorded_operation_traces(
    name: str, code: int, verdict: str, blamed: list[dict[str, int]], shared_data: SharedData,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    got, answer = run(capsys, shared_data.folder / f"traces/straggler_{name}.parquet")
    assert (got, answer["verdict"]) == (code, verdict)
    found = answer["causes"][0]["blamed"]
    assert [{key: each[key] for key in want} for each, want in zip(found, blamed, strict=True)] == blamed


def test_a_column_of_stages_tells_a_slow_stage_from_slow_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = in_stages(SimulatedJob(ranks=8, steps=60, noise=0.05).seconds(Random(2)), 4, work=1.4)
    lines = [
        f"{stage},{rank},{step},{second}"
        for rank, (stage, row) in enumerate(zip(times.stages, times.seconds, strict=True))
        for step, second in enumerate(row)
    ]
    file, picture = tmp_path / "steps.csv", tmp_path / "steps.svg"
    file.write_text("stage,rank,step,seconds\n" + "\n".join(lines) + "\n")
    code, answer = run(capsys, file, "--plot", picture)
    assert (code, answer["verdict"]) == (1, "stage")
    assert [each["stage"] for each in answer["causes"][0]["blamed"]] == [3]
    assert picture.exists()


@pytest.mark.parametrize(("with_work", "code", "verdict"), [(True, 1, "data"), (False, 2, "node")])
def test_a_column_of_work_tells_skewed_data_from_a_slow_rank(
    with_work: bool, code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = slowed(SimulatedJob(ranks=6, steps=60, noise=0.05).seconds(Random(2)), 3, 1.5, since=0)
    file = tmp_path / "steps.csv"
    lines = [
        f"{rank},{step},{second},{1536 if rank == 3 and with_work else 1024}"
        for rank, row in enumerate(times.seconds)
        for step, second in enumerate(row)
    ]
    file.write_text(WORKED + "\n".join(lines) + "\n")
    assert main(["stragglers", str(file)]) == code
    assert verdict in capsys.readouterr().out
    found, answer = run(capsys, file, "--plot", tmp_path / "steps.svg")
    assert (found, answer["verdict"]) == (code, verdict)
    assert [each["rank"] for each in answer["causes"][0]["blamed"]] == ([] if with_work else [3])


def test_documented_commands(slow_rank: Path, tmp_path: Path) -> None:
    names = {"steps-*.csv": slow_rank.name, "trace.parquet": trace(tmp_path / "trace.parquet").name}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    runner = CommandRunner(commands_of_test(__file__), names, path, tmp_path)
    for line in sorted(commands_of_test(__file__)):
        runner.type(line, judge=lambda done: done.returncode in (0, 2))
    assert not runner.left
    assert (tmp_path / "trace.svg").exists()


def test_several_files_are_one_job(slow_rank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = slow_rank.read_text().splitlines()[1:]
    files = []
    for rank in range(6):
        files.append(slow_rank.with_name(f"steps-{rank}.csv"))
        files[-1].write_text(HEAD + "\n".join(line for line in lines if line.startswith(f"{rank},")) + "\n")
    assert run(capsys, *files) == run(capsys, slow_rank)


def piped(content: bytes) -> str:
    """A pipe, as of `muster stragglers <(…)`; it is read once. At most 64 KiB."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return f"/dev/fd/{reading}"


def test_pipes_are_read_like_files(slow_rank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = slow_rank.read_text().splitlines()[1:]
    halves = [[line for line in lines if (line[0] < "3") == low] for low in (True, False)]
    pipes = [piped((HEAD + "\n".join(half) + "\n").encode()) for half in halves]
    assert run(capsys, *pipes) == run(capsys, slow_rank)


def test_a_trace_in_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = piped(trace(tmp_path / "trace.parquet").read_bytes())
    assert main(["stragglers", pipe]) == 64
    assert capsys.readouterr().err.startswith(f"muster: {pipe}: an operation trace")


def test_nobody_and_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.csv"
    rows = [f'{step},"a, b",1.0,{rank}' for step in range(20) for rank in (0, 8, 16)]
    file.write_text("\ufeffstep, note ,seconds,rank\n" + "\n".join(rows) + "\n\n")
    code, answer = run(capsys, file)
    assert (code, answer["verdict"], answer["ranks"], answer["steps"]) == (0, "nobody", 3, 20)


def test_steps_without_all_ranks_are_left_out(slow_rank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [line for line in slow_rank.read_text().splitlines() if not line.startswith(("2,7,", "3,7,", "0,99,"))]
    slow_rank.write_text("\n".join(kept) + "\n")
    code, answer = run(capsys, slow_rank)
    assert (code, answer["steps"], answer["incompleteSteps"]) == (2, 98, 2)


def test_text_output(slow_rank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stragglers", str(slow_rank)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("verdict: node")
    assert lines[-1].split()[:2] == ["rank", "4"]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "rank, step, seconds"),
        ("rank,step,time\n0,0,1\n", 1, "'time'"),
        ("rank,step,seconds,rank\n", 1, "'rank'"),
        (HEAD + "0,0,1\n0,1,nan\n", 3, "'nan'"),
        (HEAD + "0,0,inf\n", 2, "'inf'"),
        (HEAD + "0,0,-1\n", 2, "'-1'"),
        (HEAD + "0,0,0\n", 2, "'0'"),
        (HEAD + "0,0,1e-300\n", 2, "'1e-300'"),
        (HEAD + "0,0,\n", 2, "''"),
        (HEAD + "0,0\n", 2, "2 values"),
        (HEAD + "a,0,1\n", 2, "'a'"),
        (HEAD + "-1,0,1\n", 2, "'-1'"),
        (HEAD + "0,1.5,1\n", 2, "'1.5'"),
        (HEAD + "0,99999999999999999999,1\n", 2, "step"),
        (HEAD + "0,1,1\n1,0,1\n0,0,1\n", 4, "0 follows 1"),
        (HEAD + "0,1,1\n0,1,1\n", 3, "1 follows 1"),
        ("rank,step,seconds,stage,stage\n", 1, "stage"),
        (STAGED + "0,0,1,2\n0,1,1,3\n", 3, "3 follows 2"),
        (STAGED + "0,0,1,last\n", 2, "'last'"),
        (STAGED + "0,0,1\n", 2, "3 values"),
        ("rank,step,seconds,work,work\n", 1, "work"),
        (WORKED + "0,0,1,0\n", 2, "work: '0'"),
        (WORKED + "0,0,1,nan\n", 2, "work: 'nan'"),
        (WORKED + "0,0,1,\n", 2, "work: ''"),
        (HEAD + "x" * 70_000, 2, "65536"),
        ('rank,step,seconds\n"0,0,1\n' * 3, 4, "expected"),
    ],
)
def test_bad_file_is_named_with_its_line(
    text: str, line: int, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    assert main(["stragglers", str(file)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"muster: {file}:{line}: ")
    assert what in error


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD, "two ranks"),
        (HEAD + "3,0,1\n3,1,1\n", "rank 3"),
        (HEAD + "0,0,1\n1,0,9\n2,0,1\n", "at least 7"),
        (HEAD + "0,0,1\n0,1,1\n1,2,1\n", "rank 1"),
    ],
)
def test_too_little_to_judge(text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    assert main(["stragglers", str(file)]) == 64
    error = capsys.readouterr().err
    assert str(file) in error
    assert what in error


def test_work_of_some_ranks_only_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "rank-0.csv", tmp_path / "rank-1.csv"
    one.write_text(WORKED + "0,0,1,5\n")
    other.write_text(HEAD + "1,0,1\n")
    assert main(["stragglers", str(one), str(other)]) == 64
    assert "rank 1 " in capsys.readouterr().err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stragglers", str(tmp_path / "none.csv")]) == 64
    assert "none.csv" in capsys.readouterr().err


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.parquet"
    file.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["stragglers", str(file)]) == 64
    assert "passmuster[traces]" in capsys.readouterr().err


def trace(file: Path, **changes: list[object]) -> Path:
    """Two dp ranks, two stages, ten steps of one microbatch."""
    import pyarrow
    from pyarrow import parquet

    rows = [(dp, stage, step, kind) for dp in (0, 1) for stage in (0, 1) for step in range(12) for kind in "fb"]
    columns: dict[str, list[object]] = {
        "dp_rank": [dp for dp, *_ in rows],
        "stage": [stage for _, stage, *_ in rows],
        "rank": [2 * dp + stage for dp, stage, *_ in rows],
        "step": [step for *_, step, _ in rows],
        "optype": [{"f": "forward-compute", "b": "backward-compute"}[kind] for *_, kind in rows],
        "duration": [0.1] * len(rows),
        "mb_id": [0] * len(rows),
    } | changes
    parquet.write_table(pyarrow.table({name: values for name, values in columns.items() if values}), file)
    return file


def test_operation_trace_without_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, trace(tmp_path / "trace"))
    assert (code, answer["verdict"], answer["ranks"], answer["steps"]) == (0, "nobody", 4, 12)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"stage": []}, "stage missing"),
        ({"duration": [0.1] * 95 + [float("nan")]}, "row 96: duration"),
        ({"duration": [-0.1] + [0.1] * 95}, "row 1: duration"),
        ({"step": [None] + [0] * 95}, "row 1: step"),
        ({"optype": ["gc"] * 96}, "0 workers"),
        ({"dp_rank": [0] * 72 + [1] * 24}, "dp_rank 1, stage 0"),
    ],
)
def test_bad_operation_trace(
    changes: dict[str, list[object]], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trace(tmp_path / "trace.parquet", **changes)
    assert main(["stragglers", str(file)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"muster: {file}: ")
    assert what in error


def test_broken_parquet_and_a_trace_beside_another_file(
    tmp_path: Path, slow_rank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1" + b"x" * 100)
    assert main(["stragglers", str(broken)]) == 64
    assert main(["stragglers", str(slow_rank), str(broken)]) == 64
    first, second = capsys.readouterr().err.splitlines()
    assert str(broken) in first
    assert str(broken) in second


def test_a_long_job_takes_bounded_memory() -> None:
    table = StepTable(cells_limit=4096)
    for step in range(100_000):
        for rank in (0, 1, 2):
            table.add(rank, step, 2.0 if rank == 1 and step >= 50_000 else 1.0, work=7.0 + rank)
    times, incomplete = table.complete()
    assert len(times.steps) * 3 <= 4096
    assert incomplete == 0
    assert [set(row) for row in times.work] == [{7.0}, {8.0}, {9.0}]
    slow = [step for step, second in zip(times.steps, times.seconds[1], strict=True) if second > 1.5]
    assert abs(slow[0] - 50_000) <= table.width


def test_plot(slow_rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.svg"
    run(capsys, slow_rank, "--plot", file)
    root = ET.parse(file).getroot()  # noqa: S314  # our own file
    bold = [each.text for each in root.iter(f"{SVG}text") if each.get("font-weight") == "bold"]
    assert bold[1:] == ["rank 4"]
    [frame] = [each for each in root.iter(f"{SVG}rect") if each.get("fill") == "none"]
    left, width = float(frame.get("x", "")), float(frame.get("width", ""))
    whole = max(float(each.get("x", "0")) + float(each.get("width", "0")) for each in root.iter(f"{SVG}rect")
                if each.get("fill") != "white")  # fmt: skip
    assert left + width == pytest.approx(whole, abs=1)
    assert width / (whole - 210) == pytest.approx(0.6, abs=0.05)


def test_plot_of_many_ranks_shows_the_blamed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(ranks=200, steps=30, noise=0.05)
    file = write(tmp_path / "steps.csv", [list(row) for row in slowed(job.seconds(Random(2)), 177, 1.5, 0).seconds])
    run(capsys, file, "--plot", tmp_path / "steps.svg")
    assert ">rank 177<" in (tmp_path / "steps.svg").read_text()


def test_plot_that_cannot_be_written(slow_rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stragglers", str(slow_rank), "--plot", str(tmp_path / "none" / "steps.svg")]) == 64


def test_the_pytorch_example_writes_a_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for PyTorch, which takes gigabytes: it calls the hook once for each bucket of gradients."""
    hooks = ModuleType("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    vars(hooks)["allreduce_hook"] = lambda *_: "reduced"
    distributed, torch = ModuleType("torch.distributed"), ModuleType("torch")
    vars(distributed)["get_rank"] = lambda: 3
    vars(torch).update(distributed=distributed, cuda=SimpleNamespace(is_available=lambda: False))
    for module in (torch, distributed, hooks):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    registered = []
    model = SimpleNamespace(register_comm_hook=lambda state, hook: registered.append((state, hook)))
    monkeypatch.chdir(tmp_path)
    times = runpy.run_path(str(ROOT / "examples/step_times.py"))["StepTimes"](model)
    [(state, hook)] = registered
    for step in range(3):
        times.begin(step)
        for last in (False, True):
            assert hook(state, SimpleNamespace(is_last=lambda last=last: last)) == "reduced"
    times.file.close()
    table = StepTable()
    table.add(4, 0, 1.0)
    from muster_cli.stragglers.step_file import read_step_file

    with (tmp_path / "steps-3.csv").open("rb") as opened:
        read_step_file(tmp_path / "steps-3.csv", opened, table)
    read, _ = table.complete()
    assert (read.ranks, read.steps) == ([3, 4], [0])

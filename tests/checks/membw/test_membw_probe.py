"""Which NUMA nodes there are, what is asked of each, and what becomes of a test that does not end well."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json, mangled

from muster_checks.base.commands import LocalCommands, Output, python_child
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.membw import MEMBW, MembwParameters
from muster_checks.membw.topology import parse_cpu_list, read_numa_nodes
from muster_checks.membw.worker import MemoryRefused, MemoryReport
from muster_checks.registry import SHIPPED
from muster_checks.testing.recorded import Answer, RecordedCommands, failed, hung, lay_out, node

CHILD = " ".join(python_child("muster_checks.membw.worker"))
SOUND = msgspec.json.encode(
    MemoryReport(threads=4, gb_per_s=50.0, cpu_share=1.0, local_share=1.0, patterns=5, wrong_chunks=0, mismatches=())
)


def meminfo(number: int, total_kib: int = 64 << 20, free_kib: int = 32 << 20, cached_kib: int = 8 << 20) -> str:
    return "".join(
        f"Node {number} {name}: {value:>14} kB\n"
        for name, value in (("MemTotal", total_kib), ("MemFree", free_kib), ("Inactive(file)", cached_kib))
    )


def machine(*cpus: str, threads: int = 2, cache: str = "32768K") -> dict[str, str | int]:
    """NUMA nodes with these CPUs; the ``threads`` of a core lie far apart, each node has one last-level cache."""
    files: dict[str, str | int] = {}
    for number, text in enumerate(cpus):
        files[f"/sys/devices/system/node/node{number}/cpulist"] = text
        files[f"/sys/devices/system/node/node{number}/meminfo"] = meminfo(number)
        numbers = parse_cpu_list(text)
        for cpu in numbers:
            core = numbers.index(cpu) % (len(numbers) // threads or 1)
            mine = [each for place, each in enumerate(numbers) if place % (len(numbers) // threads or 1) == core]
            folder = f"/sys/devices/system/cpu/cpu{cpu}"
            files[f"{folder}/topology/thread_siblings_list"] = ",".join(map(str, mine))
            for index, (level, size, shared) in enumerate((("1", "48K", str(cpu)), ("3", cache, text))):
                files[f"{folder}/cache/index{index}/level"] = level
                files[f"{folder}/cache/index{index}/size"] = size
                files[f"{folder}/cache/index{index}/shared_cpu_list"] = shared
    return files


async def run(root: Path, answer: Answer, **values: object) -> tuple[Result, list[dict[str, object]], list[float]]:
    view = node(root, {CHILD: answer})
    assert isinstance(view.commands, RecordedCommands)
    result = await run_probe(MEMBW, view, MembwParameters.model_validate(values))
    return (
        result,
        [json.loads(argv[-1]) for argv, _ in view.commands.calls],
        [limit for _, limit in view.commands.calls],
    )


def test_it_is_shipped():
    assert SHIPPED["membw"] == "muster_checks.membw:MEMBW"


async def test_each_numa_node_is_measured_with_one_thread_a_core_and_far_more_memory_than_cache(tmp_path: Path):
    lay_out(tmp_path, machine("0-3,8-11", "4-7,12-15", cache="96M"))
    result, tasks, limits = await run(tmp_path, SOUND)
    assert result.verdict is Verdict.PASS
    assert [finding.component for finding in result.findings] == ["numa/0", "numa/0", "numa/1", "numa/1"]
    assert [(task["numa"], task["cpus"], task["size_bytes"]) for task in tasks] == [
        (0, [0, 1, 2, 3], 768 << 20),
        (1, [4, 5, 6, 7], 768 << 20),
    ]
    assert all(limit < float(str(task["deadline_s"])) for task, limit in zip(tasks, limits, strict=True))


async def test_a_single_node_needs_no_binding(tmp_path: Path):
    lay_out(tmp_path, machine("0-3"))
    _, tasks, _ = await run(tmp_path, SOUND)
    assert [(task["numa"], task["size_bytes"]) for task in tasks] == [(None, 512 << 20)]


async def test_a_larger_block_may_be_asked_for_and_is_whole_chunks(tmp_path: Path):
    lay_out(tmp_path, machine("0-3"))
    _, tasks, _ = await run(tmp_path, SOUND, block_mib=1025, seconds=2.5)
    assert (tasks[0]["size_bytes"], tasks[0]["seconds"]) == (1026 << 20, 2.5)


async def test_without_room_at_a_node_nothing_is_started(tmp_path: Path):
    files = machine("0-3", "4-7") | {
        "/sys/devices/system/node/node1/meminfo": meminfo(1, 64 << 20, 512 << 10, 511 << 10)
    }
    result, tasks, _ = await run(lay_out(tmp_path, files), SOUND)
    assert [task["numa"] for task in tasks] == [0]
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NoRoom")
    for fact in ("512 MiB", "half of", "1023 MiB", "block_mib"):
        assert fact in result.message


async def test_what_the_kernel_takes_back_at_once_is_room(tmp_path: Path):
    files = machine("0-3") | {"/sys/devices/system/node/node0/meminfo": meminfo(0, 64 << 20, 512 << 10, 512 << 10)}
    result, _, _ = await run(lay_out(tmp_path, files), SOUND)
    assert result.verdict is Verdict.PASS


async def test_caches_that_several_groups_of_cpus_have_add_up(tmp_path: Path):
    files = machine("0-7", threads=1)
    for cpu in range(8):
        files[f"/sys/devices/system/cpu/cpu{cpu}/cache/index1/shared_cpu_list"] = "0-3" if cpu < 4 else "4-7"
    assert read_numa_nodes(node(lay_out(tmp_path, files)))[0].cache_bytes == 64 << 20


def test_memory_without_cpus_and_cpus_without_memory_are_left_alone(tmp_path: Path):
    files = machine("0-3", "", "4-7") | {"/sys/devices/system/node/node2/meminfo": meminfo(2, 0, 0, 0)}
    assert [each.number for each in read_numa_nodes(node(lay_out(tmp_path, files)))] == [0]


def test_a_kernel_without_numa_is_one_node(tmp_path: Path):
    lay_out(tmp_path, {"/sys/devices/system/cpu/online": "0-1", "/proc/meminfo": "MemTotal: 100 kB\nMemFree: 50 kB"})
    (only,) = read_numa_nodes(node(tmp_path))
    assert (only.number, only.cpus, only.memory_bytes, only.room_bytes) == (0, (0, 1), 100 << 10, 50 << 10)


async def test_a_machine_that_tells_nothing_of_its_cpus_is_skipped(tmp_path: Path):
    result, _, _ = await run(tmp_path, SOUND)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")


def test_a_node_whose_figures_cannot_be_read_is_measured_without_them(tmp_path: Path):
    lay_out(tmp_path, {"/sys/devices/system/node/node0/cpulist": "0", "/sys/devices/system/node/node1000/cpulist": "1"})
    (only,) = read_numa_nodes(node(tmp_path))
    assert (only.cpus, only.cache_bytes, only.memory_bytes, only.room_bytes) == ((0,), 0, 0, None)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("5", [5]),
        ("", []),
        ("3-1", []),
        ("0-99999", []),
        ("0,x", []),
        ("-1", []),
        ("0-", []),
    ],
)
def test_lists_of_cpus_are_read_or_empty(text: str, cpus: list[int]):
    assert parse_cpu_list(text) == cpus


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_whatever_sysfs_holds_gives_nodes_or_none(tmp_path_factory: pytest.TempPathFactory, noise: bytes):
    root = tmp_path_factory.mktemp("root")
    for name in lay_out(root, machine("0-1")).rglob("*"):
        if name.is_file() and name.name != "cpulist":
            name.write_bytes(noise)
    try:
        (only,) = read_numa_nodes(node(root))
    except NotHere:
        return
    assert set(only.cpus) <= {0, 1}


@pytest.mark.parametrize(
    ("output", "reason", "said"),
    [
        (msgspec.json.encode(MemoryRefused("NoCpu", "may run on none")), "NoCpu", "may run on none"),
        (failed("python3", 1, b"OSError: [Errno 12] Cannot allocate memory"), "NotMeasured", "allocate"),
        (failed("python3", 127), "NotMeasured", "127"),
        (failed("python3", -signal.SIGKILL), "NotMeasured", "SIGKILL"),
        (hung("python3", 63.0), "NotMeasured", "63 s"),
        (Output(argv=("python3",), missing="not found"), "NotMeasured", "not found"),
        (Output(argv=("python3",), exit_code=0, stdout=SOUND, truncated=True), "NotMeasured", "more"),
        *((text, "NotMeasured", "report") for text in TEXTS),
        *(
            (text, "NotMeasured", "report")
            for text in mangled(SOUND)
            if text not in (SOUND, SOUND.replace(b"\n", b"\r\n"))
        ),
    ],
)
async def test_a_test_that_does_not_end_well_is_unknown(tmp_path: Path, output: Answer, reason: str, said: str):
    result, _, _ = await run(lay_out(tmp_path, machine("0-3")), output)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, reason)
    assert said in result.message


async def test_a_bus_error_is_worth_a_look_and_proves_nothing(tmp_path: Path):
    result, _, _ = await run(lay_out(tmp_path, machine("0-3")), failed("python3", -signal.SIGBUS))
    assert (result.verdict, result.reason) == (Verdict.WARN, "BusError")


@settings(max_examples=60, deadline=None)
@given(any_json())
def test_any_json_is_no_report(tmp_path_factory: pytest.TempPathFactory, value: object):
    text = json.dumps(value).encode()
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(text, type=MemoryReport | MemoryRefused)


@pytest.mark.alone
async def test_this_machine_is_measured_for_real():
    result = await run_probe(MEMBW, NodeView(), MembwParameters(block_mib=64, seconds=0.5))
    by_reason: Mapping[str, Verdict] = {finding.reason: finding.verdict for finding in result.findings}
    assert by_reason.get("PatternsKept") is Verdict.PASS, result
    # other work on this machine disturbs the bandwidth; then that is said
    assert "Bandwidth" in by_reason or by_reason["Disturbed"] is Verdict.UNKNOWN


async def test_a_test_that_nobody_waits_for_ends_by_itself():
    task = {"numa": None, "cpus": [0], "size_bytes": 64 << 20, "seconds": 30.0, "deadline_s": 1}
    output = await LocalCommands().run(python_child("muster_checks.membw.worker", json.dumps(task)), timeout_s=30.0)
    assert output.exit_code == -signal.SIGALRM, output
    assert output.duration_s < 15

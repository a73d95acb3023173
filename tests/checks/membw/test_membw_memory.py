"""What is done to real memory: patterns are written and compared, bits are turned in between, bandwidth is measured."""

import ctypes
import os
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.commands import LocalCommands, python_child
from muster_checks.membw.free_memory import find_room_bytes
from muster_checks.membw.memory import (
    CHUNK,
    CopyRate,
    MemoryBlock,
    PatternMismatch,
    allocate_block,
    best_round,
    compare,
    copy_bandwidth,
    local_share,
    measure_copy_rate,
    patterns,
    physical_address,
    run_pinned,
    write,
)
from muster_checks.membw.worker import MemoryRefused, MemoryReport, MemoryTask, measure
from muster_checks.testing.recorded import lay_out

CPUS = sorted(os.sched_getaffinity(0))
SIZE = 8 * CHUNK
ROOM = 1 << 40


def turn(taken: MemoryBlock, offset: int, bits: int) -> None:
    """What bad memory does."""
    byte = ctypes.c_ubyte.from_address(taken.address + offset)
    byte.value ^= bits


@pytest.mark.parametrize(
    ("name", "content"), list(patterns(SIZE)), ids=lambda each: each if isinstance(each, str) else ""
)
def test_memory_keeps_every_pattern(name: str, content: bytes):
    with allocate_block(SIZE, 0) as taken:
        write(taken, CPUS, content)
        assert compare(taken, CPUS, name, content) == (0, [])


@pytest.mark.parametrize(
    ("name", "content"), list(patterns(SIZE)), ids=lambda each: each if isinstance(each, str) else ""
)
@pytest.mark.parametrize("offset", [0, CHUNK - 1, 5 * CHUNK + 4099, SIZE - 1])
def test_one_turned_bit_is_found_at_its_place(name: str, content: bytes, offset: int):
    with allocate_block(SIZE, None) as taken:
        write(taken, CPUS, content)
        turn(taken, offset, 0x10)
        chunks, words = compare(taken, CPUS, name, content)
    assert chunks == 1
    (word,) = words
    assert (word.pattern, word.offset) == (name, offset // 8 * 8)
    assert word.expected ^ word.actual == 0x10 << 8 * (offset % 8)


def test_many_wrong_words_are_counted_by_chunk_and_a_few_are_kept():
    _, content = next(patterns(SIZE))
    with allocate_block(SIZE, None) as taken:
        write(taken, CPUS, content)
        ctypes.memset(taken.address + CHUNK, 0xFF, 3 * CHUNK)
        chunks, words = compare(taken, CPUS, "0x00", content)
    assert (chunks, len(words)) == (3, 8)


def test_two_addresses_that_fall_together_are_found_by_the_last_pattern():
    *_, (name, content) = patterns(SIZE)
    for apart in (8, 4096, CHUNK, 4 * CHUNK):  # a line of the address that is stuck
        with allocate_block(SIZE, None) as taken:
            write(taken, CPUS, content)
            ctypes.memmove(taken.address, taken.address + apart, 8)
            assert compare(taken, CPUS, name, content)[0] == 1


def test_what_is_copied_counts_as_read_and_as_written():
    assert copy_bandwidth(3 * 10**9, 2.0) == 3.0


def test_the_fastest_round_of_all_threads_together_counts_with_the_slowest_threads_share():
    assert best_round([[(1.0, 0.9), (2.0, 0.8)], [(4.0, 0.5), (1.0, 1.0)]]) == CopyRate(5.0, 0.5)


def test_all_cpus_copy_together():
    with allocate_block(64 * CHUNK, None) as taken:
        write(taken, CPUS, next(patterns(taken.size))[1])
        rate = measure_copy_rate(taken, CPUS, 0.5)
    assert 0.1 < rate.gb_per_s < 1000
    assert 0 < rate.cpu_share <= 1.05


def test_more_cpus_than_chunks_are_no_endless_loop():
    with allocate_block(2 * CHUNK, None) as taken:
        many = [*CPUS, *CPUS]
        write(taken, many, next(patterns(taken.size))[1])
        assert measure_copy_rate(taken, many, 0.5).gb_per_s > 0.1


def test_the_copy_copies():
    with allocate_block(SIZE, None) as taken:
        *_, (_, content) = patterns(SIZE)
        write(taken, CPUS, content)
        measure_copy_rate(taken, CPUS, 0.5)
        assert ctypes.string_at(taken.address, SIZE // 2) == ctypes.string_at(taken.address + SIZE // 2, SIZE // 2)


def test_each_thread_runs_on_its_own_cpu():
    seen: dict[int, set[int]] = {}
    run_pinned(CPUS, lambda place: seen.update({place: os.sched_getaffinity(0)}))
    assert seen == {place: {cpu} for place, cpu in enumerate(CPUS)}
    assert os.sched_getaffinity(0) == set(CPUS)  # ours is as it was


def test_what_a_thread_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        run_pinned(CPUS, lambda place: print(1 // (place - place)))
    with pytest.raises(OSError, match="Invalid argument"):
        run_pinned([8000], print)


def test_bound_memory_lies_at_its_node():
    with allocate_block(SIZE, 0) as taken:
        assert local_share(taken, 0) is None  # not touched yet
        write(taken, CPUS, next(patterns(SIZE))[1])
        assert local_share(taken, 0) == (1.0 if Path("/proc/self/numa_maps").exists() else None)


MAPS = """\
7f0000000000 bind:1 anon=90 dirty=90 N0=30 N1=60 kernelpagesize_kB=4
7f0000100000 bind:1 anon=10 dirty=10 N1=10 kernelpagesize_kB=4
7f0000200000 default file=/usr/lib/libc.so.6 mapped=9 N0=9 kernelpagesize_kB=4
not an address N0=7
"""


def test_the_share_of_pages_at_a_node_is_counted_over_all_maps_of_the_block(tmp_path: Path):
    maps = lay_out(tmp_path, {"numa_maps": MAPS}) / "numa_maps"
    taken = MemoryBlock(0x7F0000000000, 2 * CHUNK)
    assert local_share(taken, 1, maps) == 0.7
    assert local_share(taken, 2, maps) == 0.0
    assert local_share(MemoryBlock(0x1000, CHUNK), 1, maps) is None
    assert local_share(taken, 1, tmp_path / "none") is None


def test_a_physical_address_is_read_where_it_may_be(tmp_path: Path):
    page = os.sysconf("SC_PAGESIZE")
    table = tmp_path / "pagemap"
    table.write_bytes((0).to_bytes(8, "little") + (1 << 63 | 7).to_bytes(8, "little") + (1 << 63).to_bytes(8, "little"))
    assert physical_address(page + 24, table) == 7 * page + 24
    assert physical_address(24, table) is None  # not there
    assert physical_address(2 * page, table) is None  # hidden from us: frame 0
    assert physical_address(9 * page, table) is None
    assert physical_address(0, tmp_path / "none") is None


def task(**values: object) -> MemoryTask:
    given = {"numa": 0, "cpus": tuple(CPUS), "size_bytes": 64 * CHUNK, "seconds": 0.5, "deadline_s": 60}
    return msgspec.convert({**given, **values}, MemoryTask)


def test_a_whole_measurement_has_all_its_figures():
    report = measure(task(), find_room_bytes(psutil.virtual_memory().available))
    assert isinstance(report, MemoryReport)
    assert (report.threads, report.patterns, report.wrong_chunks, report.mismatches) == (len(CPUS), 5, 0, ())
    assert report.gb_per_s > 0.1


def test_more_than_half_of_what_is_free_is_never_taken():
    report = measure(task(), 128 * CHUNK - 1)
    assert isinstance(report, MemoryRefused)
    assert report.reason == "NoRoom"
    assert "half of" in report.why
    assert isinstance(measure(task(), 128 * CHUNK), MemoryReport)


async def test_the_process_that_measures_asks_what_this_machine_has_available():
    argument = msgspec.json.encode(task(size_bytes=1 << 50)).decode()
    output = await LocalCommands().run(python_child("muster_checks.membw.worker", argument), timeout_s=60)
    report = msgspec.json.decode(output.stdout, type=MemoryReport | MemoryRefused)
    assert isinstance(report, MemoryRefused)
    assert report.reason == "NoRoom"


def test_cpus_that_are_not_allowed_are_refused():
    report = measure(task(cpus=(8000, 8001)), ROOM)
    assert isinstance(report, MemoryRefused)
    assert (report.reason, "2 CPUs" in report.why) == ("NoCpu", True)


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, ROOM),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": 700, "/sys/fs/cgroup/memory.current": 300}, 400),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.current": 3}, ROOM),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": 7, "/sys/fs/cgroup/memory.current": 9}, 0),
        (
            {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": 2 * ROOM, "/sys/fs/cgroup/memory.current": 3},
            ROOM,
        ),
        (
            {
                "/proc/self/cgroup": "0::/kubepods/pod7/agent",
                "/sys/fs/cgroup/kubepods/memory.max": 5000,
                "/sys/fs/cgroup/kubepods/memory.current": 4000,
                "/sys/fs/cgroup/kubepods/pod7/memory.max": 900,
                "/sys/fs/cgroup/kubepods/pod7/memory.current": 100,
            },
            800,
        ),
        (
            {
                "/proc/self/cgroup": "7:cpu,cpuacct:/x\n4:memory:/host/only\nrubbish\n1:name=systemd:/x",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": 600,
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": 100,
            },
            500,
        ),
        ({"/proc/self/cgroup": "4:memory:/../../../etc"}, ROOM),
    ],
)
def test_the_tightest_limit_is_the_room(tmp_path: Path, files: dict[str, str | int], room: int):
    assert find_room_bytes(ROOM, lay_out(tmp_path, files)) == room


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_a_control_group_file_of_any_bytes_limits_nothing(tmp_path_factory: pytest.TempPathFactory, text: bytes):
    root = tmp_path_factory.mktemp("root")
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_bytes(text)
    assert find_room_bytes(ROOM, root) == ROOM


def test_a_mismatch_survives_the_way_to_the_parent():
    sent = MemoryReport(1, 2.0, 1.0, None, 5, 1, (PatternMismatch("0xAA", 8, 2**64 - 1, 1, 2**40),))
    assert msgspec.json.decode(msgspec.json.encode(sent), type=MemoryReport | MemoryRefused) == sent

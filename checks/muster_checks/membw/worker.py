"""The process that measures one NUMA node: ``python -m muster_checks.membw.worker '{"numa": 0, …}'``.

It is a separate process because defective memory kills the process that reads it. It is the kernel's first choice when
memory runs out, runs at low priority (nice 10), and exits on its own if nobody waits for it any more.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from muster_checks.membw.free_memory import find_room_bytes
from muster_checks.membw.memory import (
    MemoryBlock,
    PatternMismatch,
    allocate_block,
    compare,
    local_share,
    measure_copy_rate,
    patterns,
    write,
)

NICE = 10
SPARED = 0.5  # the test uses at most this share of the free memory


class MemoryTask(msgspec.Struct, frozen=True):
    numa: int | None
    cpus: tuple[int, ...]
    size_bytes: int
    seconds: float
    deadline_s: int


class MemoryReport(msgspec.Struct, frozen=True, tag="report"):
    """The result: bandwidth as in memory.CopyRate; from the pattern test the number of patterns, the wrong chunks and
    the first wrong words."""

    threads: int
    gb_per_s: float
    cpu_share: float
    local_share: float | None
    patterns: int
    wrong_chunks: int
    mismatches: tuple[PatternMismatch, ...]


class MemoryRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Why the test did not run."""

    reason: str
    why: str


def describe_no_room(size_bytes: int, room_bytes: int, where: str) -> str:
    return (
        f"the test needs {size_bytes >> 20} MiB and uses at most half of the free memory, but only "
        f"{room_bytes >> 20} MiB are free {where}: free some memory, or lower block_mib"
    )


def measure(task: MemoryTask, room_bytes: int) -> MemoryReport | MemoryRefused:
    """Never uses more than half of the free memory."""
    cpus = sorted(set(task.cpus) & os.sched_getaffinity(0))
    if not cpus:
        return MemoryRefused("NoCpu", f"may run on none of the node's {len(task.cpus)} CPUs (a container's cpuset?)")
    if task.size_bytes > SPARED * room_bytes:
        return MemoryRefused("NoRoom", describe_no_room(task.size_bytes, room_bytes, "within the control group limits"))
    with allocate_block(task.size_bytes, task.numa) as taken:
        wrong, words, done = _test(taken, cpus)
        share = None if task.numa is None else local_share(taken, task.numa)
        rate = measure_copy_rate(taken, cpus, task.seconds)
    return MemoryReport(len(cpus), rate.gb_per_s, rate.cpu_share, share, done, wrong, words)


def _test(taken: MemoryBlock, cpus: list[int]) -> tuple[int, tuple[PatternMismatch, ...], int]:
    """Write everything before comparing: the data has then left the caches, which are far smaller."""
    wrong, words, done = 0, [], 0
    for name, content in patterns(taken.size):
        write(taken, cpus, content)
        chunks, found = compare(taken, cpus, name, content)
        wrong, done = wrong + chunks, done + 1
        words += found
    return wrong, tuple(words), done


def main(argument: str) -> None:
    import psutil  # here: the agent imports this module for its types

    task = msgspec.json.decode(argument, type=MemoryTask)
    signal.alarm(task.deadline_s)
    os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    room_bytes = find_room_bytes(psutil.virtual_memory().available)
    sys.stdout.buffer.write(msgspec.json.encode(measure(task, room_bytes)))


if __name__ == "__main__":
    main(sys.argv[1])

"""The process that measures one NUMA node: ``python -m muster_checks.membw.worker '{"numa": 0, …}'``.

A process of its own, because memory that is really bad kills who reads it. It is the first that the kernel kills when
memory runs short, gives way to others (nice 10), and ends by itself when nobody waits for it any more.
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
SPARED = 0.5  # at most this part of what is free is taken


class MemoryTask(msgspec.Struct, frozen=True):
    numa: int | None
    cpus: tuple[int, ...]
    size_bytes: int
    seconds: float
    deadline_s: int


class MemoryReport(msgspec.Struct, frozen=True, tag="report"):
    """What came of it: bandwidth as memory.Rate has it; of the pattern test the patterns, the chunks that were wrong,
    and the first wrong words."""

    threads: int
    gb_per_s: float
    cpu_share: float
    local_share: float | None
    patterns: int
    wrong_chunks: int
    mismatches: tuple[PatternMismatch, ...]


class MemoryRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Why nothing was done."""

    reason: str
    why: str


def measure(task: MemoryTask, room_bytes: int) -> MemoryReport | MemoryRefused:
    """Never takes more than half of what is free."""
    cpus = sorted(set(task.cpus) & os.sched_getaffinity(0))
    if not cpus:
        return MemoryRefused("NoCpu", f"may run on none of the node's {len(task.cpus)} CPUs (a container's cpuset?)")
    if task.size_bytes > SPARED * room_bytes:
        said = (
            f"{task.size_bytes >> 20} MiB to be taken, {room_bytes >> 20} MiB free (limits of control groups counted)"
        )
        return MemoryRefused("NoRoom", said)
    with allocate_block(task.size_bytes, task.numa) as taken:
        wrong, words, done = _test(taken, cpus)
        share = None if task.numa is None else local_share(taken, task.numa)
        rate = measure_copy_rate(taken, cpus, task.seconds)
    return MemoryReport(len(cpus), rate.gb_per_s, rate.cpu_share, share, done, wrong, words)


def _test(taken: MemoryBlock, cpus: list[int]) -> tuple[int, tuple[PatternMismatch, ...], int]:
    """Write all, then compare all: what is compared has long left the caches, which are far smaller."""
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

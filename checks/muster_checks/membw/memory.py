"""A block of memory at one NUMA node: copy it, fill it with patterns, compare it.

Uses ctypes, because libc's memcpy and memcmp release the interpreter lock, so threads run in parallel at the speed of
the memory, without numpy (30 MB in every agent's image) or a compiler.
"""

import ctypes
import mmap
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from random import Random

import msgspec

from muster_checks.membw.topology import NUMA_LIMIT

CHUNK = 1 << 20
COPY_LIMIT = 64 << 20  # per memcpy, so that all threads stop at about the same time
MISMATCHES_LIMIT = 8
ROUND_S = 0.5
BARRIER_S = 20.0  # if one thread has failed, the others stop waiting for it after this time
_WORD = 8
# mbind: the kernel's arch/*/entry/syscalls tables and include/uapi/asm-generic/unistd.h
_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259, "s390x": 268}
_MPOL_BIND = 2  # include/uapi/linux/mempolicy.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.memcpy.argtypes = _libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = ctypes.c_void_p
_libc.memcmp.restype = ctypes.c_int


class PatternMismatch(msgspec.Struct, frozen=True):
    """One word that differs from what was written. offset: from the start of the block; physical: None unless the
    process is root of the whole machine."""

    pattern: str
    offset: int
    expected: int
    actual: int
    physical: int | None = None


class CopyRate(msgspec.Struct, frozen=True):
    """The best round's copy bandwidth; cpu_share: share of the time that its slowest thread had a CPU."""

    gb_per_s: float
    cpu_share: float


class MemoryBlock(msgspec.Struct, frozen=True):
    address: int
    size: int


@contextmanager
def allocate_block(size: int, numa: int | None) -> Iterator[MemoryBlock]:
    """Untouched anonymous memory, bound to node ``numa`` if that is allowed (a container may not do so)."""
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        held.madvise(mmap.MADV_HUGEPAGE)  # otherwise the figures depend on a kernel setting
    view = ctypes.c_char.from_buffer(held)
    address = ctypes.addressof(view)
    try:
        if numa is not None and platform.machine() in _MBIND:
            mask = (ctypes.c_ulong * (NUMA_LIMIT // 64))()
            mask[numa // 64] = 1 << numa % 64
            _libc.syscall(
                ctypes.c_long(_MBIND[platform.machine()]),
                ctypes.c_void_p(address),
                ctypes.c_ulong(size),
                ctypes.c_long(_MPOL_BIND),
                mask,
                ctypes.c_ulong(NUMA_LIMIT),
                ctypes.c_ulong(0),
            )
        yield MemoryBlock(address, size)
    finally:
        del view
        held.close()


def run_pinned(cpus: Sequence[int], work: Callable[[int], None]) -> None:
    """Run ``work(place)`` on all of ``cpus`` in parallel, one thread each; raises the first exception of any thread."""
    failures: list[BaseException] = []

    def run(place: int, cpu: int) -> None:
        try:
            os.sched_setaffinity(0, {cpu})  # 0: this thread alone
            work(place)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(cpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def measure_copy_rate(taken: MemoryBlock, cpus: Sequence[int], seconds: float) -> CopyRate:
    """Copies the block's lower half to its upper half repeatedly; counts bandwidth as STREAM does."""
    half = taken.size // 2
    cpus = cpus[: half // CHUNK]  # every thread needs a part
    rounds = max(2, round(seconds / ROUND_S))
    results: list[list[tuple[float, float]]] = [[] for _ in range(rounds)]
    start = threading.Barrier(len(cpus))

    def work(place: int) -> None:
        begin, end = _slice(half, len(cpus), place)
        pieces = [(at, min(COPY_LIMIT, end - at)) for at in range(begin, end, COPY_LIMIT)]
        for result in results:
            start.wait(BARRIER_S)
            began, used, copied = time.perf_counter(), time.thread_time(), 0
            for at, length in cycle(pieces):
                _libc.memcpy(taken.address + half + at, taken.address + at, length)
                copied += length
                if (took := time.perf_counter() - began) >= ROUND_S:
                    break
            result.append((copy_bandwidth(copied, took), (time.thread_time() - used) / took))

    run_pinned(cpus, work)
    return best_round(results)


def best_round(rounds: Sequence[Sequence[tuple[float, float]]]) -> CopyRate:
    """The fastest of the rounds, as in STREAM: disturbances only make a round slower. Each round holds a (bandwidth,
    share of a CPU) for each thread."""
    best = max(rounds, key=lambda threads: sum(rate for rate, _ in threads))
    return CopyRate(sum(rate for rate, _ in best), min(share for _, share in best))


def copy_bandwidth(copied_bytes: int, seconds: float) -> float:
    """In GB/s. Copied data is read and written, so it counts twice."""
    return 2 * copied_bytes / seconds / 1e9


def patterns(size: int) -> Iterator[tuple[str, bytes]]:
    """The patterns: (name, one chunk plus as many words as there are chunks). Chunk ``n`` is written starting at word
    ``n``, so with ``address`` no two words whose addresses differ in one bit hold the same value, which reveals a stuck
    address line."""
    length = CHUNK + _WORD * (size // CHUNK + 1)
    for byte in (0x00, 0xFF, 0xAA, 0x55):
        yield f"0x{byte:02X}", bytes([byte]) * length
    yield "address", Random(length).randbytes(length)  # noqa: S311 - only needs different words


def write(taken: MemoryBlock, cpus: Sequence[int], content: bytes) -> None:
    """Fill the block. Each CPU writes its part first, so that the kernel allocates the memory near it."""
    source = ctypes.create_string_buffer(content, len(content))
    base = ctypes.addressof(source)

    def work(place: int) -> None:
        for at, length in _chunks(taken, len(cpus), place):
            _libc.memcpy(taken.address + at, base + _WORD * (at // CHUNK), length)

    run_pinned(cpus, work)


def compare(taken: MemoryBlock, cpus: Sequence[int], name: str, content: bytes) -> tuple[int, list[PatternMismatch]]:
    """(number of wrong chunks, the first wrong word of each)."""
    source = ctypes.create_string_buffer(content, len(content))
    base = ctypes.addressof(source)
    wrong: list[int] = []
    words: list[PatternMismatch] = []
    lock = threading.Lock()

    def work(place: int) -> None:
        for at, length in _chunks(taken, len(cpus), place):
            if _libc.memcmp(taken.address + at, base + _WORD * (at // CHUNK), length) != 0:
                with lock:
                    wrong.append(at)
                    words.extend(islice(_mismatches(taken, at, length, name, content), MISMATCHES_LIMIT - len(words)))

    run_pinned(cpus, work)
    return len(wrong), words


def local_share(taken: MemoryBlock, numa: int, maps: Path = Path("/proc/self/numa_maps")) -> float | None:
    """The share of the block at node ``numa``; None if the kernel does not report it."""
    pages: dict[int, int] = {}
    with suppress(OSError):
        for line in maps.read_text().splitlines():
            start, _, rest = line.partition(" ")
            if re.fullmatch(r"[0-9a-f]{1,16}", start) and 0 <= int(start, 16) - taken.address < taken.size:
                for number, count in re.findall(r"\bN(\d+)=(\d+)", rest):
                    pages[int(number)] = pages.get(int(number), 0) + int(count)
    return pages.get(numa, 0) / sum(pages.values()) if pages else None


def physical_address(address: int, pagemap: Path = Path("/proc/self/pagemap")) -> int | None:
    """The physical address; None without CAP_SYS_ADMIN. Format: Documentation/admin-guide/mm/pagemap.rst."""
    page = os.sysconf("SC_PAGESIZE")
    with suppress(OSError), pagemap.open("rb", buffering=0) as file:
        file.seek(address // page * 8)
        entry = int.from_bytes(file.read(8), "little")
        frame = entry & ((1 << 55) - 1)
        if entry >> 63 and frame:
            return frame * page + address % page
    return None


def _mismatches(taken: MemoryBlock, at: int, length: int, name: str, content: bytes) -> Iterator[PatternMismatch]:
    found = ctypes.string_at(taken.address + at, length)
    shift = _WORD * (at // CHUNK)
    for place in range(0, length, _WORD):
        is_there, should_be = found[place : place + _WORD], content[shift + place : shift + place + _WORD]
        if is_there != should_be:
            yield PatternMismatch(
                pattern=name,
                offset=at + place,
                expected=int.from_bytes(should_be, "little"),
                actual=int.from_bytes(is_there, "little"),
                physical=physical_address(taken.address + at + place),
            )


def _slice(size: int, of: int, place: int) -> tuple[int, int]:
    """The part of one of ``of`` threads, in whole chunks."""
    chunks = size // CHUNK
    return chunks * place // of * CHUNK, chunks * (place + 1) // of * CHUNK


def _chunks(taken: MemoryBlock, of: int, place: int) -> Iterator[tuple[int, int]]:
    begin, end = _slice(taken.size, of, place)
    for at in range(begin, end, CHUNK):
        yield at, CHUNK

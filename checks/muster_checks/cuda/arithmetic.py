"""Child process: double-precision arithmetic and memory patterns on each GPU; every result is verified.

Run manually: ``python -m muster_checks.cuda.arithmetic``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from ctypes import c_double, c_uint64
from functools import partial

from muster_checks.cuda import kernels
from muster_checks.cuda.child import parser, run
from muster_checks.cuda.driver import CudaDevice, CudaError
from muster_checks.cuda.protocol import ArithmeticResult, WrongValues

VECTOR_DOUBLES = 1 << 26  # 512 MiB, ten times the largest cache
MATRIX_EDGE = 4096  # 137 GFLOP a product: 7 ms at 20 TFLOP/s, half a second on a GPU with 1/32 of the FP64 units
CHUNK_BYTES, LEAST_BYTES = 1 << 30, 1 << 16
FACTOR = 3.0  # a of y = a x + y
TRIALS, TRIAL_S, LAUNCHES = 3, 0.1, 100  # a trial repeats the launch until its time is filled, at most LAUNCHES times
NOWHERE = (1 << 64) - 1

GridPosition = tuple[int, int]
"""Number of wrong values, and the position of the first."""


class ArithmeticBench:
    """One GPU with its kernels, and the two words in device memory where the check kernels report."""

    def __init__(self, device: CudaDevice, wrong: c_uint64) -> None:
        self.device = device
        self.wrong = wrong
        self._kernels = device.functions(kernels.ptx(), kernels.NAMES)

    def each(self, name: str, n: int, *arguments: object) -> None:
        """Queue kernel ``name`` for ``n`` elements."""
        grid = (-(-n // kernels.BLOCK), 1)
        self.device.launch(self._kernels[name], grid, (kernels.BLOCK, 1), [c_uint64(n), *arguments])

    def multiply(self, edge: int, matrices: Sequence[c_uint64]) -> None:
        blocks, threads = edge // kernels.TILE, kernels.EDGE
        self.device.launch(self._kernels["dgemm"], (blocks, blocks), (threads, threads), [c_uint64(edge), *matrices])

    def checked(self, queue: Callable[[], None]) -> GridPosition:
        """What the check kernels launched by ``queue`` report."""
        self.device.write(self.wrong, [0, NOWHERE])
        queue()
        count, first = self.device.read(self.wrong, 2)
        return count, first

    def seconds(self, launch: Callable[[], None]) -> tuple[float, int]:
        """The best mean time of one launch, and the number of launches needed to measure it."""
        once = self.device.seconds(launch)
        number = min(LAUNCHES, max(1, int(TRIAL_S / max(once, 1e-6))))

        def trial() -> None:
            for _ in range(number):
                launch()

        best = min(self.device.seconds(trial) for _ in range(TRIALS)) / number
        return max(best, 1e-9), 1 + TRIALS * number


def compute(device: CudaDevice, index: int, arguments: argparse.Namespace) -> ArithmeticResult:
    wrong: list[WrongValues] = []
    with device.memory(16) as words:
        bench = ArithmeticBench(device, words)
        daxpy = _daxpy(bench, wrong)
        dgemm = _dgemm(bench, wrong)
        tested = _memory(bench, arguments.memory_share, wrong)
    return ArithmeticResult(index, daxpy, dgemm, tested, tuple(wrong))


def _daxpy(bench: ArithmeticBench, wrong: list[WrongValues]) -> float:
    """GB/s."""
    n = min(VECTOR_DOUBLES, bench.device.free_bytes() // 64) // 512 * 512
    with bench.device.memory(8 * n) as x, bench.device.memory(8 * n) as y:

        def trial() -> tuple[GridPosition, float]:
            bench.each("daxpy_start", n, x, y)
            each_s, launches = bench.seconds(lambda: bench.each("daxpy", n // 2, x, y, c_double(FACTOR)))
            total = c_double(FACTOR * launches)
            return bench.checked(lambda: bench.each("daxpy_check", n, y, total, bench.wrong)), each_s

        each_s = _twice_if_wrong("daxpy", n, trial, wrong)
    return 24 * n / each_s / 1e9  # x and y are read, y is written


def _dgemm(bench: ArithmeticBench, wrong: list[WrongValues]) -> float:
    """GFLOP/s."""
    room = int((bench.device.free_bytes() / 4 / 24) ** 0.5)  # three matrices of doubles in a quarter of the free memory
    edge = max(1, min(MATRIX_EDGE, room) // kernels.TILE) * kernels.TILE
    n = edge * edge
    with bench.device.memory(8 * n) as a, bench.device.memory(8 * n) as b, bench.device.memory(8 * n) as c:
        sums = [c_double(float(sum(k % 5 for k in range(edge)))), c_double(float(sum(k % 3 for k in range(edge))))]
        sums.append(c_double(float(sum((k % 5) * (k % 3) for k in range(edge)))))

        def trial() -> tuple[GridPosition, float]:
            bench.each("dgemm_start", n, c_uint64(edge), a, b)
            each_s, _ = bench.seconds(lambda: bench.multiply(edge, (a, b, c)))
            return bench.checked(lambda: bench.each("dgemm_check", n, c_uint64(edge), c, *sums, bench.wrong)), each_s

        each_s = _twice_if_wrong("dgemm", n, trial, wrong)
    return 2 * edge**3 / each_s / 1e9


def _memory(bench: ArithmeticBench, share: float, wrong: list[WrongValues]) -> int:
    """Bytes tested: patterns in ``share`` of the free memory. All are written before any is read back, which also finds
    two addresses that share a cell; then the same inverted, so that every bit has held 0 and 1."""
    left = int(bench.device.free_bytes() * share) // 8 * 8
    with ExitStack() as held:
        chunks: list[tuple[c_uint64, int]] = []
        piece = CHUNK_BYTES
        while left >= 8 and piece >= LEAST_BYTES:
            size = min(left, piece)
            try:
                chunks.append((held.enter_context(bench.device.memory(size)), size))
                left -= size
            except CudaError as error:
                if error.error != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                piece = size // 16 * 8  # free memory may be fragmented, or another process has just taken some
        tested = sum(size for _, size in chunks)

        def trial() -> tuple[GridPosition, float]:
            places = [_pattern(bench, chunks, mask) for mask in (0, NOWHERE)]
            return (sum(count for count, _ in places), min(first for _, first in places)), 0.0

        _twice_if_wrong("memory", 2 * tested // 8, trial, wrong)
    return tested


def _pattern(bench: ArithmeticBench, chunks: Sequence[tuple[c_uint64, int]], mask: int) -> GridPosition:
    for seed, (memory, size) in enumerate(chunks):
        bench.each("memory_write", size // 8, memory, c_uint64(seed), c_uint64(mask))
    total, place, before = 0, NOWHERE, 0
    for seed, (memory, size) in enumerate(chunks):
        pattern = (memory, c_uint64(seed), c_uint64(mask), bench.wrong)
        count, first = bench.checked(partial(bench.each, "memory_check", size // 8, *pattern))
        if count:
            total, place = total + count, min(place, before + 8 * first)
        before += size
    return total, place


def _twice_if_wrong(
    test: str, of: int, trial: Callable[[], tuple[GridPosition, float]], wrong: list[WrongValues]
) -> float:
    """Seconds of one launch. A wrong result is tested again: a single bit flip does not mean a defective GPU."""
    (count, first), each_s = trial()
    if count:
        (again, _), _ = trial()
        wrong.append(WrongValues(test, count, of, first, again))
    return each_s


def _options() -> argparse.ArgumentParser:
    options = parser()
    options.add_argument(
        "--memory-share", type=float, default=0.9, help="share of the free memory to fill with patterns"
    )
    return options


if __name__ == "__main__":
    sys.exit(run(compute, None, _options()))

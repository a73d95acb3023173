"""The kernels as they are, run on the CPU by an interpreter of PTX; and assembled for GPUs."""

import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from tests.checks.cuda.ptx_machine import Machine
from tests.machine import skip

from muster_checks.cuda.kernels import BLOCK, EDGE, NAMES, TILE, ptx

NOWHERE = (1 << 64) - 1
N = 520  # more than two blocks, the last one not full


class Gpu(Machine):
    def __init__(self) -> None:
        super().__init__(ptx())
        self.wrong = self.memory.take(16)

    def each(self, name: str, n: int, *arguments: float) -> None:
        self.launch(name, (-(-n // BLOCK), 1), (BLOCK, 1), [n, *arguments])

    def checked(self, name: str, n: int, *arguments: float) -> tuple[float, ...]:
        """Number of wrong values and the place of the first."""
        self.memory.pack("u64", self.wrong, 0, NOWHERE)
        self.each(name, n, *arguments, self.wrong)
        return self.memory.unpack("u64", self.wrong, 2)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def vectors(gpu: Gpu) -> tuple[int, int]:
    """x and y after three times y = 3 x + y."""
    x, y = gpu.memory.take(8 * N), gpu.memory.take(8 * N)
    gpu.each("daxpy_start", N, x, y)
    for _ in range(3):
        gpu.each("daxpy", N // 2, x, y, 3.0)
    return x, y


def test_daxpy_adds_a_x_to_y(gpu: Gpu, vectors: tuple[int, int]) -> None:
    assert gpu.memory.unpack("f64", vectors[1], N) == tuple(9.0 * (i % 1021) + i % 509 for i in range(N))


def test_a_right_daxpy_passes_its_check(gpu: Gpu, vectors: tuple[int, int]) -> None:
    assert gpu.checked("daxpy_check", N, vectors[1], 9.0) == (0, NOWHERE)


@pytest.mark.parametrize("places", [(0,), (N - 1,), (300, 7, 519)])
def test_wrong_elements_of_daxpy_are_counted_and_the_first_is_named(
    gpu: Gpu, vectors: tuple[int, int], places: tuple[int, ...]
) -> None:
    for place in places:
        gpu.memory.pack("f64", vectors[1] + 8 * place, -0.5)
    assert gpu.checked("daxpy_check", N, vectors[1], 9.0) == (len(places), min(places))


def test_a_result_that_is_no_number_is_wrong(gpu: Gpu, vectors: tuple[int, int]) -> None:
    gpu.memory.pack("f64", vectors[1], float("nan"))
    assert gpu.checked("daxpy_check", N, vectors[1], 9.0) == (1, 0)


@pytest.mark.parametrize(("seed", "mask"), [(0, 0), (5, NOWHERE)])
def test_a_pattern_is_found_as_it_was_written(gpu: Gpu, seed: int, mask: int) -> None:
    memory = gpu.memory.take(8 * N)
    gpu.each("memory_write", N, memory, seed, mask)
    assert gpu.checked("memory_check", N, memory, seed, mask) == (0, NOWHERE)
    assert len(set(gpu.memory.unpack("u64", memory, N))) == N


def test_the_second_pattern_is_the_first_turned_over(gpu: Gpu) -> None:
    words = []
    for mask in (0, NOWHERE):
        memory = gpu.memory.take(8 * N)
        gpu.each("memory_write", N, memory, 3, mask)
        words.append(gpu.memory.unpack("u64", memory, N))
    assert all(int(one) ^ int(other) == NOWHERE for one, other in zip(*words, strict=True))


def test_one_flipped_bit_of_memory_is_found(gpu: Gpu) -> None:
    memory = gpu.memory.take(8 * N)
    gpu.each("memory_write", N, memory, 1, 0)
    (word,) = gpu.memory.unpack("u64", memory + 8 * 77)
    gpu.memory.pack("u64", memory + 8 * 77, int(word) ^ 1 << 63)
    assert gpu.checked("memory_check", N, memory, 1, 0) == (1, 77)


def test_memory_of_another_chunk_is_found_out(gpu: Gpu) -> None:
    memory = gpu.memory.take(8 * N)
    gpu.each("memory_write", N, memory, 1, 0)
    assert gpu.checked("memory_check", N, memory, 2, 0) == (N, 0)


def test_dgemm_multiplies_a_tile_of_its_matrices(gpu: Gpu) -> None:
    edge = 2 * TILE
    n = edge * edge
    a, b, c = (gpu.memory.take(8 * n) for _ in range(3))
    left = [[float(i % 7 + k % 5) for k in range(edge)] for i in range(edge)]
    right = [[float(k % 3 + j % 11) for k in range(edge)] for j in range(edge)]
    gpu.memory.pack("f64", a, *(value for row in left for value in row))
    gpu.memory.pack("f64", b, *(right[j][k] for k in range(edge) for j in range(edge)))
    # the block of the second row and column of blocks, so that its place in the grid counts
    gpu.launch("dgemm", (2, 2), (EDGE, EDGE), [edge, a, b, c], only=(1, 1))
    product = gpu.memory.unpack("f64", c, n)
    for i in range(edge):
        for j in range(edge):
            inside = i >= TILE and j >= TILE
            expected = sum(x * y for x, y in zip(left[i], right[j], strict=True)) if inside else 0.0
            assert product[i * edge + j] == expected


@pytest.fixture
def product(gpu: Gpu) -> tuple[int, int, float, float, float]:
    """Edge, C, and the sums that its check needs; the product computed in Python."""
    edge = TILE
    a, b, c = (gpu.memory.take(8 * edge * edge) for _ in range(3))
    gpu.each("dgemm_start", edge * edge, edge, a, b)
    left, right = gpu.memory.unpack("f64", a, edge * edge), gpu.memory.unpack("f64", b, edge * edge)
    for i in range(edge):
        row = left[i * edge : (i + 1) * edge]
        gpu.memory.pack(
            "f64",
            c + 8 * edge * i,
            *(sum(x * y for x, y in zip(row, right[j::edge], strict=True)) for j in range(edge)),
        )
    sums = [sum(k % 5 for k in range(edge)), sum(k % 3 for k in range(edge)), sum(k % 5 * (k % 3) for k in range(edge))]
    return edge, c, float(sums[0]), float(sums[1]), float(sums[2])


def test_a_right_product_passes_its_check(gpu: Gpu, product: tuple[int, int, float, float, float]) -> None:
    edge, c, *sums = product
    assert gpu.checked("dgemm_check", edge * edge, edge, c, *sums) == (0, NOWHERE)


def test_a_wrong_element_of_a_product_is_found(gpu: Gpu, product: tuple[int, int, float, float, float]) -> None:
    edge, c, *sums = product
    gpu.memory.pack("f64", c + 8 * 1234, gpu.memory.unpack("f64", c + 8 * 1234)[0] + 1)
    assert gpu.checked("dgemm_check", edge * edge, edge, c, *sums) == (1, 1234)


def test_the_module_has_every_kernel_that_is_launched() -> None:
    assert all(f".entry {name}(" in ptx() for name in NAMES)


@pytest.fixture(scope="module")
def ptxas() -> Path:
    try:
        return Path(str(distribution("nvidia-cuda-nvcc-cu12").locate_file("nvidia/cuda_nvcc/bin/ptxas")))
    except PackageNotFoundError as error:
        skip("ptxas (of nvidia-cuda-nvcc-cu12, which .venv has)", str(error))


# Pascal, Volta, Turing, Ampere (A100, A10), Ada, Hopper, Blackwell (B200, RTX)
@pytest.mark.parametrize("model", ["60", "70", "75", "80", "86", "89", "90", "100", "120"])
def test_the_kernels_assemble_without_spilling_registers(ptxas: Path, tmp_path: Path, model: str) -> None:
    source = tmp_path / "kernels.ptx"
    source.write_text(ptx())
    done = subprocess.run(
        [ptxas, f"-arch=sm_{model}", "-v", "-o", tmp_path / "kernels.cubin", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    spilt = re.findall(r"(\d+) bytes spill", done.stderr)
    assert spilt == ["0", "0"] * len(NAMES), done.stderr

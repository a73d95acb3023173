"""The messages that a child process writes: one JSON object per line, as soon as it is known.

If a child dies, its last line names the GPU it had started. Values only; both sides import this file.
"""

from typing import TypeAlias

import msgspec


class NoUsableGpu(msgspec.Struct, frozen=True, tag="unavailable"):
    """No GPU can be used: libcuda.so.1 is missing, or the driver rejects everything."""

    message: str


class GpuStart(msgspec.Struct, frozen=True, tag="begun"):
    """The child starts with GPU ``index`` of ``count``. ``address``: ``0000:3b:00.0``; ``name``: of the product."""

    index: int
    count: int
    address: str
    name: str


class GpuFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The driver rejected ``call``. ``error``: the driver's name, e.g. ``CUDA_ERROR_OUT_OF_MEMORY``."""

    index: int
    call: str
    error: str


class CopyResult(msgspec.Struct, frozen=True, tag="copied"):
    """Copies between pinned host memory and the GPU, GB/s (1e9 bytes)."""

    index: int
    to_device_gb_per_s: float
    from_device_gb_per_s: float


class WrongValues(msgspec.Struct, frozen=True):
    """A test with wrong results.

    test:   ``daxpy``, ``dgemm``, ``memory``
    count:  wrong values, of ``of``; ``first``: position of the first one (byte offset in the buffer for ``memory``)
    again:  wrong values when the same test ran a second time
    """

    test: str
    count: int
    of: int
    first: int
    again: int


class ArithmeticResult(msgspec.Struct, frozen=True, tag="computed"):
    """Arithmetic and memory results of one GPU.

    daxpy_gb_per_s:     bytes read and written by y = a x + y, 1e9 bytes/s
    dgemm_gflop_per_s:  of C = A B in double precision, 1e9 operations/s
    tested_bytes:       device memory that was tested with patterns
    """

    index: int
    daxpy_gb_per_s: float
    dgemm_gflop_per_s: float
    tested_bytes: int
    wrong: tuple[WrongValues, ...] = ()


Line: TypeAlias = NoUsableGpu | GpuStart | GpuFailure | CopyResult | ArithmeticResult
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_LINES_LIMIT = 4096  # 16 GPUs write 32


def encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def decode(text: bytes) -> list[Line]:
    """The child's lines in ``text``; anything else that a library printed there is ignored."""
    lines: list[Line] = []
    for raw in text.splitlines()[:_LINES_LIMIT]:
        if raw.startswith(b"{"):
            try:
                lines.append(_DECODER.decode(raw))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # truncated, or not from the child
                continue
    return lines

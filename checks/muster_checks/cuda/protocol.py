"""What a child process says of its GPUs: one JSON object a line, written as soon as it is known.

A child that dies has told which GPU it had begun with. Values only; both sides import this file.
"""

from typing import TypeAlias

import msgspec


class NoUsableGpu(msgspec.Struct, frozen=True, tag="unavailable"):
    """No GPU can be used: no libcuda.so.1, or the driver said no to everything."""

    message: str


class GpuStart(msgspec.Struct, frozen=True, tag="begun"):
    """The child turns to GPU ``index`` of ``count``. ``address``: ``0000:3b:00.0``; ``name``: of the product."""

    index: int
    count: int
    address: str
    name: str


class GpuFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The driver refused ``call``. ``error``: its name for that, e.g. ``CUDA_ERROR_OUT_OF_MEMORY``."""

    index: int
    call: str
    error: str


class CopyResult(msgspec.Struct, frozen=True, tag="copied"):
    """Copies between pinned host memory and the GPU, GB/s (1e9 bytes)."""

    index: int
    to_device_gb_per_s: float
    from_device_gb_per_s: float


class WrongValues(msgspec.Struct, frozen=True):
    """A test whose result was not what it must be.

    test:   ``daxpy``, ``dgemm``, ``memory``
    count:  wrong values, of ``of``; ``first``: place of the first of them (bytes into the buffer for ``memory``)
    again:  wrong values when the same test was run a second time
    """

    test: str
    count: int
    of: int
    first: int
    again: int


class ArithmeticResult(msgspec.Struct, frozen=True, tag="computed"):
    """Arithmetic and memory of one GPU.

    daxpy_gb_per_s:     bytes read and written by y = a x + y, 1e9 bytes/s
    dgemm_gflop_per_s:  of C = A B in double precision, 1e9 operations/s
    tested_bytes:       device memory that held patterns
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
    """The child's lines in ``text``; what else a library may have printed there is passed over."""
    lines: list[Line] = []
    for raw in text.splitlines()[:_LINES_LIMIT]:
        if raw.startswith(b"{"):
            try:
                lines.append(_DECODER.decode(raw))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # cut short, or not ours
                continue
    return lines

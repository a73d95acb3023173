"""Runs PTX on the CPU, one thread after the other from barrier to barrier: the kernels' logic, tested without a GPU.

Only what kernels.py uses is known; anything else is an error. Memory is strict: a byte outside what was allocated
is an error, too.
"""

import operator
import re
import struct
from collections.abc import Callable, Iterator, Sequence

Registers = dict[str, int | float]
Step = Callable[[Registers], str | None]
"""Does one instruction. None: go on; a label: go there; "ret" and "bar": what they say."""

MASK = {"u32": (1 << 32) - 1, "u64": (1 << 64) - 1, "b64": (1 << 64) - 1}
_KERNEL = re.compile(r"\.visible \.entry (\w+)\(\n(.*?)\n\)\n\{(.*?)\n\}", re.S)
_SHARED = re.compile(r"\.shared \.align 8 \.b8 (\w+)\[(\d+)\];")
_PLACE = re.compile(r"\[([%\w]+)(?:\+(\d+))?\]")
_COMPARE = {"ge": operator.ge, "eq": operator.eq, "ne": operator.ne}
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul.lo": operator.mul,
    "rem": operator.mod,
    "div": operator.floordiv,
    "xor": operator.xor,
    "shl": operator.lshift,
}


class Space:
    """Bytes at addresses, in blocks with gaps between them."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, bytearray]] = []
        self._next = 1 << 20

    def take(self, size: int, at: int | None = None) -> int:
        start = self._next if at is None else at
        self._blocks.append((start, bytearray(size)))
        self._next += size + 4096
        return start

    def pack(self, kind: str, at: int, *values: float) -> None:
        block, place = self._find(at, 8 * len(values))
        struct.pack_into(f"<{len(values)}{'d' if kind == 'f64' else 'Q'}", block, place, *values)

    def unpack(self, kind: str, at: int, count: int = 1) -> tuple[float, ...]:
        block, place = self._find(at, 8 * count)
        return struct.unpack_from(f"<{count}{'d' if kind == 'f64' else 'Q'}", block, place)

    def _find(self, at: int, size: int) -> tuple[bytearray, int]:
        for start, block in self._blocks:
            if start <= at and at + size <= start + len(block):
                assert at % size == 0 or size > 16, f"{at:#x} is not aligned to {size}"
                return block, at - start
        raise AssertionError(f"no memory at {at:#x}, {size} bytes")


class Machine:
    """A GPU that has loaded ``ptx``."""

    def __init__(self, ptx: str) -> None:
        self.memory = Space()
        self._kernels = {name: (parameters, body) for name, parameters, body in _KERNEL.findall(ptx)}

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        arguments: Sequence[float],
        only: tuple[int, int] | None = None,
    ) -> None:
        """Run all blocks of the grid, or only one."""
        parameters, body = self._kernels[name]
        names = [line.split()[-1].rstrip(",") for line in parameters.splitlines()]
        assert len(names) == len(arguments), names
        for by in range(grid[1]):
            for bx in range(grid[0]):
                if only in (None, (bx, by)):
                    self._run_block(body, dict(zip(names, arguments, strict=True)), (bx, by), block)

    def _run_block(
        self, body: str, parameters: dict[str, float], place: tuple[int, int], block: tuple[int, int]
    ) -> None:
        shared = Space()
        tiles = {}
        for tile, size in _SHARED.findall(body):
            tiles[tile] = shared.take(int(size), at=1024 + 65536 * len(tiles))
        steps, labels = _compile(body, parameters, self.memory, shared)
        threads = []
        for ty in range(block[1]):
            for tx in range(block[0]):
                special = {"%tid.x": tx, "%tid.y": ty, "%ntid.x": block[0], "%ctaid.x": place[0], "%ctaid.y": place[1]}
                threads.append(_thread(steps, labels, {**special, **tiles}))
        # a thread gives way at a barrier and at its end
        while threads:
            threads = [thread for thread in threads if next(thread, None) is not None]


def _thread(steps: Sequence[Step], labels: dict[str, int], registers: Registers) -> Iterator[str]:
    at = 0
    while True:
        went = steps[at](registers)
        at += 1
        if went == "ret":
            return
        if went == "bar":
            yield went
        elif went is not None:
            at = labels[went]


def _compile(
    body: str, parameters: dict[str, float], memory: Space, shared: Space
) -> tuple[list[Step], dict[str, int]]:
    steps: list[Step] = []
    labels: dict[str, int] = {}
    for line in re.sub(r"//[^\n]*", "", body).splitlines():
        text = line.strip()
        if text.startswith(".") or not text:
            continue
        if text.endswith(":"):
            labels[text[:-1]] = len(steps)
            continue
        assert text.endswith(";"), text
        steps.append(_step(text[:-1], parameters, memory, shared))
    return steps, labels


def _step(text: str, parameters: dict[str, float], memory: Space, shared: Space) -> Step:
    if text.startswith("@"):
        predicate, rest = text[1:].split(None, 1)
        inner = _step(rest, parameters, memory, shared)
        return lambda r: inner(r) if r[predicate] else None
    operation, _, tail = text.partition(" ")
    if operation == "ret":
        return lambda _: "ret"
    if operation == "bra":
        return lambda _: tail.strip()
    if operation == "bar.sync":
        return lambda _: "bar"
    kind = operation.rsplit(".", 1)[1]
    if operation.startswith("ld.param"):
        target, place = (part.strip() for part in tail.split(","))
        value = parameters[place.strip("[]")]
        return _set(target, lambda _: value)
    if operation.startswith(("ld.", "st.", "red.")):
        return _access(operation, kind, tail, shared if ".shared" in operation else memory)
    operands = [part.strip() for part in tail.split(",")]
    target, values = operands[0], [_value(operand, kind) for operand in operands[1:]]
    return _set(target, _arithmetic(operation, kind, values))


def _access(operation: str, kind: str, tail: str, space: Space) -> Step:
    place = _PLACE.search(tail)
    assert place is not None, tail
    base, offset = place[1], int(place[2] or 0)
    others = re.findall(r"[%\w]+", _PLACE.sub("", tail))
    if operation.startswith("ld"):

        def load(r: Registers) -> None:
            values = space.unpack(kind, int(r[base]) + offset, len(others))
            r.update(zip(others, values, strict=True))

        return load
    if operation.startswith("st"):
        return lambda r: space.pack(kind, int(r[base]) + offset, *(r[other] for other in others))
    combine = {"red.global.add.u64": operator.add, "red.global.min.u64": min}[operation]

    def reduce(r: Registers) -> None:
        at = int(r[base]) + offset
        space.pack(kind, at, combine(space.unpack(kind, at)[0], r[others[0]]) & MASK["u64"])

    return reduce


def _arithmetic(
    operation: str, kind: str, values: Sequence[Callable[[Registers], float]]
) -> Callable[[Registers], float]:
    if operation.startswith("mov.") or operation == "cvt.u64.u32":
        return values[0]
    if operation == "cvt.rn.f64.u64":
        return lambda r: float(values[0](r))
    if operation.startswith("setp."):
        compare = _COMPARE[operation.split(".")[1]]
        return lambda r: compare(values[0](r), values[1](r))
    if operation == "fma.rn.f64":
        x, y, z = values
        return lambda r: x(r) * y(r) + z(r)  # exact for the small integers here, as one rounding would be
    if operation == "add.f64":
        return lambda r: values[0](r) + values[1](r)
    if operation == "mad.lo.u32":
        x, y, z = values
        return lambda r: int(x(r) * y(r) + z(r)) & MASK["u32"]
    if operation == "mul.wide.u32":
        return lambda r: values[0](r) * values[1](r)
    combine, mask = _INTEGER[operation.rsplit(".", 1)[0]], MASK[kind]
    return lambda r: combine(int(values[0](r)), int(values[1](r))) & mask


def _set(target: str, value: Callable[[Registers], float]) -> Step:
    def step(registers: Registers) -> None:
        registers[target] = value(registers)

    return step


def _value(operand: str, kind: str) -> Callable[[Registers], float]:
    if re.fullmatch(r"[%a-z][\w.%]*", operand):
        return lambda r: r[operand]
    if operand.startswith("0d"):
        constant: float = struct.unpack(">d", bytes.fromhex(operand[2:]))[0]
    else:
        constant = int(operand, 0)
    return lambda _: constant

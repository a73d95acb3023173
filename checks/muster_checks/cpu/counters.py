"""Error counters of CPUs: thermal throttling of each socket, and the interrupts by which CPUs report errors.

Throttling (drivers/thermal/intel/therm_throt.c; Intel only): the number of events and, except on old kernels, the time,
which is added when an event ends. Interrupts: all CPUs take ``MCE`` at once, so the highest count is the number of
events; one CPU takes ``THR`` (corrected) or ``DFR`` (deferred, AMD). ``MCP`` counts polls, which are not errors.
"""

import re
from collections.abc import Iterable
from typing import BinaryIO

import msgspec

from muster_checks.base.bounded_read import names_in, open_plain, read_integer
from muster_checks.base.declaration import NodeView
from muster_checks.cpu.topology import CPUS

INTERRUPTS = ("MCE", "THR", "DFR")
LINE_LIMIT_BYTES = 1 << 16  # 5,000 CPUs
FILE_LIMIT_BYTES = 64 << 20
_CPU = re.compile(r"cpu\d+")
_LEVELS = ("core", "package")


class Throttling(msgspec.Struct, frozen=True):
    """Throttling of one socket, or of its worst core, since boot. ms: None if the kernel does not count the time."""

    socket: int
    level: str  # "core" or "package"
    events: int
    ms: int | None

    @property
    def name(self) -> str:
        return f"throttled.{self.level}.{self.socket}"


def read_throttling(node: NodeView) -> list[Throttling]:
    """Each socket's counters; empty if the CPUs have none."""
    folder = node.path(CPUS)
    worst: dict[tuple[int, str], tuple[int, int | None]] = {}
    for cpu in filter(_CPU.fullmatch, names_in(folder)):
        place = folder / cpu / "thermal_throttle"
        if not place.is_dir():
            continue
        socket = read_integer(folder / cpu / "topology/physical_package_id") or 0
        for level in _LEVELS:
            events = read_integer(place / f"{level}_throttle_count")
            if events is None:
                continue
            ms = read_integer(place / f"{level}_throttle_total_time_ms")
            before = worst.get((socket, level), (0, None))
            worst[socket, level] = max(before[0], events), ms if before[1] is None else max(before[1], ms or 0)
    return [Throttling(socket, level, *counts) for (socket, level), counts in sorted(worst.items())]


def parse_interrupts(lines: Iterable[bytes]) -> dict[str, int]:
    """``MCE``, ``THR`` and ``DFR`` events since boot, as far as the kernel counts them."""
    found: dict[str, int] = {}
    for line in lines:
        name, colon, rest = line.strip().partition(b":")
        if not colon or name.decode("ascii", "replace") not in INTERRUPTS:
            continue
        counts = []
        for word in rest.split():
            if not word.isdigit():
                break
            counts.append(int(word[:18]))
        if counts:
            found[name.decode()] = max(counts) if name == b"MCE" else sum(counts)
    return found


def read_interrupts(node: NodeView) -> dict[str, int] | None:
    """None if /proc/interrupts cannot be read. Reads line by line: on a large node the file has megabytes."""
    try:
        with open_plain(node.path("/proc/interrupts")) as file:
            return parse_interrupts(_lines(file))
    except OSError:
        return None


def _lines(file: BinaryIO) -> Iterable[bytes]:
    size = 0
    while size < FILE_LIMIT_BYTES and (line := file.readline(LINE_LIMIT_BYTES)):
        size += len(line)
        yield line

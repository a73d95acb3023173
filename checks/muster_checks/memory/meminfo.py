"""Memory as a whole: /proc/meminfo, /proc/vmstat, /proc/pressure/memory, NUMA nodes.

psutil is not used: it does not obey ``--root`` and lacks corrupted pages, huge pages, pressure and NUMA nodes.
"""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable, names_in, number, read_integer, read_text
from muster_checks.base.declaration import NodeView

_LINE = re.compile(r"(?:Node \d+ )?([A-Za-z0-9_()]{1,40}):\s+(\d{1,15})(?: kB)?")
_HUGE = re.compile(r"hugepages-(\d{1,12})kB")
_NODE = re.compile(r"node(\d{1,4})")
_FULL = re.compile(r"^full avg10=\S+ avg60=(\S+)", re.M)
_BAD_OUTCOMES = ("failed", "ignored")


class NumaMemory(msgspec.Struct, frozen=True):
    """memory_kib: None if unreadable. poisoned, in_use: pages taken out of use since boot, and those that could not be
    isolated (memory_failure, kernel 6.3 and later; otherwise None)."""

    number: int
    memory_kib: int | None
    has_cpus: bool
    poisoned: int | None = None
    in_use: int | None = None


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes in KiB; None if the kernel does not report a value.

    corrupted:     pages taken out of use because of bad memory (HardwareCorrupted)
    huge:          reserved as huge pages, all sizes
    pressure_percent: share of the last minute in which no task could run for lack of memory (PSI, full avg60)
    oom_kills:     since boot, in containers and on the whole node
    """

    total: int
    available: int | None = None
    corrupted: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    huge: int | None = None
    pressure_percent: float | None = None
    oom_kills: int | None = None
    nodes: tuple[NumaMemory, ...] = ()


def parse_meminfo(text: str) -> dict[str, int]:
    """``MemTotal`` and so on, in KiB (counts for ``HugePages_…``). Raises Unreadable without MemTotal."""
    values = {found[1]: int(found[2]) for line in text.splitlines() if (found := _LINE.fullmatch(line.strip()))}
    if "MemTotal" not in values:
        raise Unreadable("no MemTotal: expected the text of /proc/meminfo")
    return values


def parse_pressure(text: str) -> float | None:
    """The percentage of the last minute in which all tasks waited (``full … avg60=``)."""
    found = _FULL.search(text)
    value = number(found[1]) if found else None
    return value if value is not None and 0 <= value <= 100 else None


def parse_counter(text: str, name: str) -> int | None:
    """One counter of /proc/vmstat."""
    found = re.search(rf"^{name} (\d{{1,18}})$", text, re.M)
    return int(found[1]) if found else None


def parse_host_memory(text: str) -> HostMemory:
    """Parses /proc/meminfo alone. Raises Unreadable."""
    values = parse_meminfo(text)
    return HostMemory(
        total=values["MemTotal"],
        available=values.get("MemAvailable"),
        corrupted=values.get("HardwareCorrupted"),
        swap_total=values.get("SwapTotal"),
        swap_free=values.get("SwapFree"),
        huge=values.get("Hugetlb"),
    )


def read_host_memory(node: NodeView) -> HostMemory:
    """Raises Unreadable if /proc/meminfo cannot be read."""
    vitals = parse_host_memory(read_text(node.path("/proc/meminfo")) or "")
    return msgspec.structs.replace(
        vitals,
        huge=_huge(node) if vitals.huge is None else vitals.huge,
        pressure_percent=parse_pressure(read_text(node.path("/proc/pressure/memory")) or ""),
        oom_kills=parse_counter(read_text(node.path("/proc/vmstat")) or "", "oom_kill"),
        nodes=tuple(_numa_nodes(node)),
    )


def _huge(node: NodeView) -> int | None:
    # before kernel 4.19 /proc/meminfo has no total over all sizes
    folder = node.path("/sys/kernel/mm/hugepages")
    sizes = [(found[0], int(found[1])) for name in names_in(folder) if (found := _HUGE.fullmatch(name))]
    counts = [(read_integer(folder / name / "nr_hugepages"), kib) for name, kib in sizes]
    return sum(count * kib for count, kib in counts if count is not None) if counts else None


def _numa_nodes(node: NodeView) -> list[NumaMemory]:
    root = node.path("/sys/devices/system/node")
    found = []
    for name in names_in(root):
        place = _NODE.fullmatch(name)
        if place is None:
            continue
        try:
            memory = parse_meminfo(read_text(root / name / "meminfo") or "")["MemTotal"]
        except Unreadable:
            memory = None
        failures = {word: read_integer(root / name / "memory_failure" / word) for word in ("total", *_BAD_OUTCOMES)}
        found.append(
            NumaMemory(
                number=int(place[1]),
                memory_kib=memory,
                has_cpus=bool(read_text(root / name / "cpulist", 4096)),
                poisoned=failures["total"],
                in_use=None if failures["total"] is None else sum(failures[word] or 0 for word in _BAD_OUTCOMES),
            )
        )
    return sorted(found, key=lambda numa: numa.number)

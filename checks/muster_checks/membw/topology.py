"""The NUMA nodes of a machine: their CPUs, caches and memory, from sysfs.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-node and .../testing/sysfs-devices-system-cpu.
psutil is not used: it does not obey ``--root`` and does not know NUMA nodes.
"""

import re
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import NotHere

CPUS_LIMIT = 8192  # the largest CONFIG_NR_CPUS of x86
NUMA_LIMIT = 1024  # and of 1 << CONFIG_NODES_SHIFT
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class NumaCpus(msgspec.Struct, frozen=True):
    """cpus: one per core; cache_bytes: sum of its last-level caches; memory_bytes: 0 if it cannot be read."""

    number: int
    cpus: tuple[int, ...]
    cache_bytes: int
    memory_bytes: int
    room_bytes: int | None


def read_numa_nodes(node: NodeView) -> list[NumaCpus]:
    """The nodes with CPUs and memory, by number. Memory without CPUs (a GPU's or CXL's) is ignored: it is not the
    host's, or not used for normal work. Raises NotHere."""
    folder = node.path("/sys/devices/system/node")
    numbers = sorted(int(name[4:]) for name in names_in(folder) if re.fullmatch(r"node[0-9]{1,3}", name))
    found = []
    for number in numbers:
        place = folder / f"node{number}"
        memory = _meminfo(place / "meminfo")
        cpus = parse_cpu_list(read_text(place / "cpulist") or "")
        if cpus and memory.get("MemTotal") != 0:
            found.append(_numa_node(node, number, cpus, memory))
    if not numbers:  # a kernel without NUMA
        cpus = parse_cpu_list(read_text(node.path("/sys/devices/system/cpu/online")) or "")
        found = [_numa_node(node, 0, cpus, _meminfo(node.path("/proc/meminfo")))] if cpus else []
    if not found:
        raise NotHere("no NUMA node with CPUs and memory under /sys/devices/system")
    return found


def parse_cpu_list(text: str) -> list[int]:
    """``0-3,8`` as numbers; empty for anything else."""
    cpus: list[int] = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        if match is None or int(match[2] or match[1]) >= CPUS_LIMIT:
            return []
        cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return cpus


def _numa_node(node: NodeView, number: int, cpus: list[int], memory: dict[str, int]) -> NumaCpus:
    folder = node.path("/sys/devices/system/cpu")
    cores = [cpu for cpu in cpus if cpu == min(_siblings(folder, cpu) & set(cpus), default=cpu)]
    caches: dict[str, int] = {}
    for cpu in cpus:
        caches |= _last_cache(folder / f"cpu{cpu}" / "cache")
    room = None
    if "MemFree" in memory:
        # memory that the kernel reclaims at once; dirty pages and pages in use do not count
        room = memory["MemFree"] + memory.get("Inactive(file)", 0) + memory.get("SReclaimable", 0)
    return NumaCpus(number, tuple(cores), sum(caches.values()), memory.get("MemTotal", 0), room)


def _siblings(folder: Path, cpu: int) -> set[int]:
    return set(parse_cpu_list(read_text(folder / f"cpu{cpu}" / "topology" / "thread_siblings_list") or ""))


def _last_cache(folder: Path) -> dict[str, int]:
    """The size of each cache of the highest level, by the CPUs that share it."""
    levels = [(read_integer(folder / name / "level") or 0, folder / name) for name in names_in(folder)]
    level, last = max(levels, default=(0, folder))
    size = re.fullmatch(r"([0-9]{1,9})([KMG]?)", read_text(last / "size") or "")
    if level == 0 or size is None:
        return {}
    return {read_text(last / "shared_cpu_list") or str(folder): int(size[1]) * _SIZES.get(size[2], 1)}


def _meminfo(path: Path) -> dict[str, int]:
    """``MemFree:  123 kB`` and ``Node 0 MemFree:  123 kB`` as bytes by name."""
    lines = re.findall(r"^(?:Node \d+ )?([\w()]+):\s+(\d{1,15}) kB$", read_text(path) or "", re.M | re.A)
    return {name: int(value) << 10 for name, value in lines}

"""What a process takes, as the kernel counts it."""

import re
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Footprint:
    """In bytes: rss is in memory, pages of libraries and programs included; own, those apart; peak, the highest rss.
    cpu_s: its own seconds and those of its children that have ended."""

    rss: int
    own: int
    peak: int
    cpu_s: float


def footprint(pid: int) -> Footprint:
    """Raises psutil.NoSuchProcess."""
    process = psutil.Process(pid)
    with process.oneshot():
        memory, used = process.memory_info(), process.cpu_times()
    return Footprint(
        rss=memory.rss,
        own=memory.rss - memory.shared,
        peak=_peak(pid),
        cpu_s=used.user + used.system + used.children_user + used.children_system,
    )


def _peak(pid: int) -> int:
    """psutil has no peak on Linux: VmHWM of proc(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise psutil.NoSuchProcess(pid)  # a zombie has no memory
    return int(found[1]) * 1024

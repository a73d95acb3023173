"""What a process takes, as the kernel counts it (proc(5))."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Footprint:
    """In bytes: rss is in memory, pages of libraries and programs included; own, those apart; peak, the highest rss.
    cpu_s: its own seconds and those of its children that have ended."""

    rss: int
    own: int
    peak: int
    cpu_s: float


def footprint(pid: int) -> Footprint:
    """Raises OSError when there is no such process."""
    place = Path(f"/proc/{pid}")
    fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
    return Footprint(
        rss=_kilobytes(place / "status", "VmRSS"),
        own=_kilobytes(place / "status", "RssAnon"),
        peak=_kilobytes(place / "status", "VmHWM"),
        cpu_s=sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S,
    )


def _kilobytes(file: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{file}: no line {name}")
    return int(found[1]) * 1024

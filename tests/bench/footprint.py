"""What a process takes, as the kernel counts it (proc(5))."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Footprint:
    """rss: bytes that are in memory, those shared with others included; pss: shared ones by the share.
    cpu_s: its own seconds and those of its children that have ended."""

    rss: int
    pss: int
    cpu_s: float


def footprint(pid: int) -> Footprint:
    """Raises OSError when there is no such process."""
    place = Path(f"/proc/{pid}")
    fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
    return Footprint(
        rss=_kilobytes(place / "status", "VmRSS"),
        pss=_kilobytes(place / "smaps_rollup", "Pss"),
        cpu_s=sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S,
    )


def _kilobytes(file: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{file}: no line {name}")
    return int(found[1]) * 1024

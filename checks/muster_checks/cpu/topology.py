"""Reads which CPUs exist, which are online, and their clocks (Documentation/ABI/testing/sysfs-devices-system-cpu).

psutil is not used: it does not obey ``--root`` and does not know which CPUs are missing or offline.
"""

import re

import msgspec

from muster_checks.base.bounded_read import names_in, number, read_integer, read_text
from muster_checks.base.declaration import NodeView

CPUS = "/sys/devices/system/cpu"
CPU_LIMIT = 65_536  # more than any kernel supports; a longer range is garbage
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_POLICY = re.compile(r"policy\d+")
_NODE = re.compile(r"node\d+")
_MHZ = re.compile(r"^cpu MHz\s*: (\S{1,20})$", re.M)


class CpufreqPolicy(msgspec.Struct, frozen=True):
    """One cpufreq policy: CPUs that share a clock. max_mhz: the highest the hardware offers, turbo included."""

    name: str
    driver: str
    governor: str
    max_mhz: float | None


class Topology(msgspec.Struct, frozen=True):
    """present, online: CPU numbers, None if the kernel does not list them; fastest_mhz: the highest current clock."""

    present: frozenset[int] | None
    online: frozenset[int] | None
    smt_off: bool
    numa_nodes: int
    policies: tuple[CpufreqPolicy, ...]
    fastest_mhz: float | None


def parse_list(text: str) -> frozenset[int] | None:
    """``0-3,8`` as numbers; None if it is not a list of CPUs."""
    found: set[int] = set()
    for part in text.strip().split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            return None
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first or last >= CPU_LIMIT:
            return None
        found.update(range(first, last + 1))
    return frozenset(found)


def parse_clocks(cpuinfo: str) -> list[float]:
    """The clock of each CPU in MHz, from /proc/cpuinfo (x86 only: other architectures do not show it)."""
    return [mhz for text in _MHZ.findall(cpuinfo) if (mhz := number(text)) is not None and mhz > 0]


def read_topology(node: NodeView) -> Topology:
    folder = node.path(CPUS)
    policies = []
    for name in filter(_POLICY.fullmatch, names_in(folder / "cpufreq")):
        place = folder / "cpufreq" / name
        highest_khz = read_integer(place / "cpuinfo_max_freq")
        policies.append(
            CpufreqPolicy(
                name=name,
                driver=read_text(place / "scaling_driver", 64) or "",
                governor=read_text(place / "scaling_governor", 64) or "",
                max_mhz=highest_khz / 1000 if highest_khz and highest_khz > 0 else None,
            )
        )
    return Topology(
        present=_read_list(node, "present"),
        online=_read_list(node, "online"),
        smt_off=read_text(folder / "smt/control", 64) in ("off", "forceoff"),
        numa_nodes=sum(bool(_NODE.fullmatch(name)) for name in names_in(node.path("/sys/devices/system/node"))),
        policies=tuple(policies),
        fastest_mhz=max(parse_clocks(read_text(node.path("/proc/cpuinfo"), 4 << 20) or ""), default=None),
    )


def _read_list(node: NodeView, name: str) -> frozenset[int] | None:
    text = read_text(node.path(f"{CPUS}/{name}"), 1 << 16)
    return parse_list(text) if text else None

"""The check ``memory``: errors per DIMM, missing memory, pages that the kernel took out of use, memory pressure."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class MemoryParameters(Parameters):
    # mcelog's default for a DIMM (mcelog.conf: dimm ce-error threshold 10 / 24h), as in the rows of the check dmesg
    max_corrected_per_day: float = Field(
        default=10, ge=0, description="corrected errors per DIMM within 24 hours above which it warns"
    )
    min_total_gib: float | None = Field(
        default=None, gt=0, description="memory that must exist, GiB, as MemTotal of /proc/meminfo counts it"
    )
    min_dimms: int | None = Field(default=None, ge=1, description="DIMMs that the kernel's EDAC driver must show")
    min_hugepages_mib: int | None = Field(
        default=None, ge=1, description="memory that must be reserved as huge pages, MiB, all sizes together"
    )
    # the kubelet's default hard eviction threshold memory.available
    min_available_mib: float = Field(default=100, ge=0, description="available memory, MiB, below which it warns")
    # above this pressure systemd-oomd kills (oomd.conf: DefaultMemoryPressureLimit)
    max_pressure_percent: float = Field(
        default=60,
        gt=0,
        le=100,
        description="percentage of a minute in which every task waited for memory, above which it warns",
    )
    allow_swap: bool = Field(default=True, description="false: warn if swap is on (the kubelet's failSwapOn)")
    first_interval_s: float = Field(
        default=1.0, ge=0, le=60, description="on the first run: seconds between the two readings of the counters"
    )


async def _probe(node: NodeView, parameters: MemoryParameters) -> Sequence[Finding]:
    from muster_checks.memory.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: MemoryParameters) -> Sequence[Finding] | None:
    from muster_checks.memory.probe import judge_recorded

    return judge_recorded(text, parameters)


MEMORY = Check(
    name="memory",
    description="memory errors per DIMM (EDAC), missing memory, poisoned pages, memory pressure",
    cost=Cost.LIGHT,
    parameters=MemoryParameters,
    timeout_s=20.0,
    period_s=60.0,
    devices=("dimm", "host"),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "/sys/devices/system/edac/mc, /sys/devices/system/node, /sys/kernel/mm/hugepages, "
        "/proc/meminfo, /proc/vmstat, /proc/pressure/memory"
    ),
    ran_on=(
        "real /proc and /sys of a virtual machine (kernel 6.18); EDAC and memory_failure on files made from the "
        "kernel's documentation, not on real hardware"
    ),
    examples=("check=memory", "check=memory&min_total_gib=1000&min_dimms=32"),
)

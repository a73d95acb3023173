"""The check ``cpu``: missing, throttled or slow CPUs, CPUs that report errors, and stuck processes."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class CpuParameters(Parameters):
    min_cpus: int | None = Field(default=None, ge=1, description="logical CPUs that must be online")
    min_numa_nodes: int | None = Field(default=None, ge=1, description="NUMA nodes that must exist")
    governor: str = Field(
        default="", max_length=32, description="cpufreq governor that every CPU must have, e.g. performance"
    )
    # No vendor names a limit: a well-cooled CPU is not throttled at all. 1 % is 9 s of 15 minutes; the kernel's own
    # warning needs 6 s of rising temperature (drivers/thermal/intel/therm_throt.c: two means of three 1 s samples)
    max_throttled_percent: float = Field(
        default=1.0,
        gt=0,
        le=100,
        description="percentage of 15 minutes in which heat throttled a socket, above which it warns",
    )
    # mcelog's default for corrected errors (10 in 24 h), as in the rows of the check dmesg
    max_corrected_per_day: float = Field(
        default=10, ge=0, description="corrected machine checks within 24 hours above which it warns"
    )
    min_frequency_mhz: float | None = Field(
        default=None,
        gt=0,
        description="clock that the fastest CPU must reach under load (default: half of the highest)",
    )
    # Azure's health agent for its CycleCloud clusters warns at 50 a core
    max_zombies_per_cpu: float = Field(default=50, gt=0, description="zombie processes per CPU above which it warns")
    max_blocked_per_cpu: float = Field(
        default=1.0,
        gt=0,
        description="processes in uninterruptible sleep per CPU, in two runs in a row, above which it warns",
    )
    first_interval_s: float = Field(
        default=1.0, ge=0, le=60, description="on the first run: seconds between the two readings of the counters"
    )


async def _probe(node: NodeView, parameters: CpuParameters) -> Sequence[Finding]:
    from muster_checks.cpu.probe import probe

    return await probe(node, parameters)


CPU = Check(
    name="cpu",
    description="offline and missing CPUs, thermal throttling, machine checks, governor and clock, stuck processes",
    cost=Cost.LIGHT,
    parameters=CpuParameters,
    timeout_s=30.0,
    # each run reads ten files per CPU and one per process: 70 ms of CPU time with 256 CPUs and 2,000 processes
    period_s=300.0,
    devices=("host",),
    probe=_probe,
    reads=(
        "/sys/devices/system/cpu, /sys/devices/system/node, /proc/interrupts, /proc/cpuinfo, /proc/loadavg, "
        "/proc/pressure/cpu, /proc/*/stat"
    ),
    ran_on=(
        "real /proc and /sys of a virtual machine (kernel 6.18); throttling, machine checks and cpufreq on files made "
        "from the kernel's documentation, not on real hardware"
    ),
    examples=("check=cpu", "check=cpu&min_cpus=224&governor=performance"),
)

"""The check ``membw``: copy bandwidth of the host's memory at each NUMA node, and whether it keeps what is written.

topology.py reads nodes, CPUs and caches; worker.py measures in a separate process, with memory.py; judge.py decides;
probe.py ties them together.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class MembwParameters(Parameters):
    block_mib: int = Field(
        default=512, ge=64, le=65_536, description="MiB tested at each NUMA node; always at least 8 times its cache"
    )
    seconds: float = Field(default=3.0, ge=0.5, le=30.0, description="duration of the copy test at each NUMA node")
    # the achievable bandwidth depends on how many channels are filled, known only to the firmware: no default
    min_bandwidth_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="bandwidth below which it fails (10^9 bytes read and written, as STREAM counts a copy)",
    )
    # healthy sockets differ by a few percent; losing one of 4 channels, or two of 8, costs 25 %; one of 8 goes unseen
    min_share_of_siblings: float = Field(
        default=0.8, gt=0, le=1, description="share of the other NUMA nodes with as much memory, below which it warns"
    )


async def _probe(node: NodeView, parameters: MembwParameters) -> Sequence[Finding]:
    from muster_checks.membw.probe import probe

    return await probe(node, parameters)


MEMBW = Check(
    name="membw",
    description="copy bandwidth of the host's memory at each NUMA node, and a bit pattern test",
    cost=Cost.HEAVY,
    parameters=MembwParameters,
    timeout_s=600.0,
    period_s=3600.0,
    devices=("numa",),
    probe=_probe,
    reads="/sys/devices/system/node and cpu, /proc/meminfo; measures in a separate Python process, no other tool",
    ran_on=(
        "real hardware: a virtual machine with 2 CPUs of an AMD EPYC and one NUMA node; several NUMA nodes only as a "
        "tree of files, and bad memory only simulated (bits flipped between writing and reading)"
    ),
    examples=("check=membw", "check=membw&min_bandwidth_gb_per_s=150"),
)

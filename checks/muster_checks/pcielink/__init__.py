"""The check ``pcielink``: PCI Express links of accelerators, NICs and NVMe disks, hop by hop to the root port.

What can be proven: a link never gives up lanes to save power, so fewer lanes than both its ends can do is a link that
did not train, or a slot wired for less than its port says; that it once had more, or that all its siblings have, is
proof. Speed is another matter: idle GPUs run at 2.5 GT/s, so a GPU's speed counts only where the driver says it works.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class PcielinkParameters(Parameters):
    first_interval_s: float = Field(
        default=1.0, ge=0.0, le=10.0, description="seconds between the two readings of the first run"
    )
    # DCGM's DCGM_LIMIT_MAX_PCIREPLAY_RATE: "8 replays per minute is the maximum recommended by RM"; AMD's RDC has the
    # same. Each corrected error of the physical or data link layer makes one end send again, so they are held to it too
    max_replays_per_minute: float = Field(
        default=8.0, ge=0.0, description="repeated or corrected transfers of one link a minute that are still fine"
    )
    replays_window_s: float = Field(
        default=600.0, ge=60.0, le=86_400.0, description="seconds over which they are counted"
    )
    errors_window_s: float = Field(
        default=3600.0,
        ge=60.0,
        le=604_800.0,
        description="seconds for which an uncorrected PCIe error is held against it",
    )


async def _probe(node: NodeView, parameters: PcielinkParameters) -> Sequence[Finding]:
    from muster_checks.pcielink.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: PcielinkParameters) -> Sequence[Finding] | None:
    from muster_checks.pcielink.probe import judge_recorded

    return judge_recorded(text, parameters)


PCIELINK = Check(
    name="pcielink",
    description="PCIe links of GPUs, IPUs, NICs and NVMe: lanes and speed of each hop, errors, vanished devices",
    cost=Cost.LIGHT,
    parameters=PcielinkParameters,
    timeout_s=20.0,
    devices=("gpu", "ipu", "nic", "disk", "pci"),
    period_s=60.0,
    probe=_probe,
    recorded=_recorded,
    reads=(
        "/sys/bus/pci/devices: {current,max}_link_{speed,width} and aer_* of each device and of the bridges above it; "
        "replay counters of NVIDIA GPUs from NVML or nvidia-smi where they answer"
    ),
    ran_on="trees laid out by the kernel's documentation; on real hardware a virtual machine without PCIe links (SKIP)",
    examples=("check=pcielink", "check=pcielink&max_replays_per_minute=20"),
)

"""The check ``pcielink``: PCI Express links of accelerators, NICs and NVMe disks, hop by hop to the root port.

A link never drops lanes to save power. If it has fewer lanes than both ends support, it did not train fully, or the
slot has fewer wires than its port reports. It is proven faulty if it had more lanes earlier, or if all its siblings
have more. Speed is different: idle GPUs run at 2.5 GT/s, so a GPU's speed counts only while the driver reports it as
busy."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class PcielinkParameters(Parameters):
    first_interval_s: float = Field(
        default=1.0, ge=0.0, le=10.0, description="seconds between the two readings of the first run"
    )
    # DCGM's DCGM_LIMIT_MAX_PCIREPLAY_RATE: "8 replays per minute is the maximum recommended by RM"; AMD's RDC uses the
    # same. Each corrected error of the physical or data link layer causes a resend, so the limit applies to them too
    max_replays_per_minute: float = Field(
        default=8.0, ge=0.0, description="replays or corrected errors of one link per minute above which it warns"
    )
    replays_window_s: float = Field(
        default=600.0, ge=60.0, le=86_400.0, description="seconds over which they are counted"
    )
    errors_window_s: float = Field(
        default=3600.0,
        ge=60.0,
        le=604_800.0,
        description="seconds for which an uncorrected PCIe error counts",
    )


async def _probe(node: NodeView, parameters: PcielinkParameters) -> Sequence[Finding]:
    from muster_checks.pcielink.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: PcielinkParameters) -> Sequence[Finding] | None:
    from muster_checks.pcielink.probe import judge_recorded

    return judge_recorded(text, parameters)


PCIELINK = Check(
    name="pcielink",
    description="PCIe links of GPUs, IPUs, NICs and NVMe: lanes and speed of each hop, errors, missing devices",
    cost=Cost.LIGHT,
    parameters=PcielinkParameters,
    timeout_s=20.0,
    devices=("gpu", "ipu", "nic", "disk", "pci"),
    period_s=60.0,
    probe=_probe,
    recorded=_recorded,
    reads=(
        "/sys/bus/pci/devices: {current,max}_link_{speed,width} and aer_* of each device and of the bridges above it; "
        "replay counters of NVIDIA GPUs from NVML or nvidia-smi, if they answer"
    ),
    ran_on="trees made from the kernel's documentation; on real hardware a virtual machine without PCIe links (SKIP)",
    examples=("check=pcielink", "check=pcielink&max_replays_per_minute=20"),
)

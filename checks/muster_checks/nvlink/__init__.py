"""The check ``nvlink``: NVLinks that are down, slow, or have increasing error counts."""

from pathlib import Path

from pydantic import Field

from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import RAN_ON, READS, gpu_check

NAME = "nvlink"


class NvlinkParameters(Parameters):
    # DCGM: "CRC errors only matter at rates of 100+ per second" (dcgm_gpu_hardware_limits.h)
    max_crc_per_s: float = Field(
        default=100.0, gt=0, description="CRC errors of a link per second, from which it fails"
    )
    # DCGM reports one a minute or more
    max_replays_per_hour: int = Field(default=60, ge=1, description="replays of a link per hour, above which it warns")
    # NVIDIA's rule for links (Xid 74) is "repeatedly"; as for the kernel log, that means three times here
    max_recoveries_per_day: int = Field(
        default=3, ge=1, description="retrainings of a link per day, from which it fails; fewer warn"
    )
    # the value at which NVIDIA's ibdiagnet reports a port
    max_effective_ber: float = Field(
        default=1e-12, gt=0, lt=1, description="bit error rate after correction (NVLink 5), above which a link warns"
    )
    expected: Path | None = Field(default=None, description="YAML file of GPU models that overrides the shipped table")


async def _probe(node: NodeView, parameters: NvlinkParameters) -> list[Finding]:
    from muster_checks.nvlink.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: NvlinkParameters) -> list[Finding] | None:
    from muster_checks.nvlink.probe import judge_recorded

    return judge_recorded(text, parameters)


NVLINK = gpu_check(
    NAME,
    NvlinkParameters,
    probe=_probe,
    recorded=_recorded,
    description="NVLinks that are down, slow, or have increasing error counts",
    reads=f"{READS}, then `nvidia-smi nvlink --status` (states and speeds only)",
    ran_on=f"{RAN_ON}; `nvidia-smi nvlink --status` in the form that public tools parse; "
    "`dcgmi nvlink --link-status` (only recorded) in the form of its source",
    examples=("check=nvlink", "check=nvlink&max_recoveries_per_day=1"),
)

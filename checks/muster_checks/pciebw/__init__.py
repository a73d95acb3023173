"""The check ``pciebw``: measures the bandwidth between the host and each accelerator.

gpu_probe.py finds a tool and runs it; link.py computes what the PCIe links can carry; judge.py compares. IPUs are
measured by muster_checks.graphcore.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding

if TYPE_CHECKING:
    from muster_checks.pciebw.judge import PciebwLimits


class PciebwParameters(Parameters):
    # 4 GB/s is the limit that clusters use in practice (IBM Autopilot, PCIeBW); the same source recommends a quarter of
    # the peak. A link with half its lanes reaches at most 43 % of its peak, a healthy one 76 % (48 of 63 GB/s, which
    # Azure requires of its H100) to 82 % (26 of 31.5, nvbandwidth's README).
    min_bandwidth_gb_per_s: float = Field(default=4.0, ge=0, le=1000, description="GB/s; below it fails")
    # Graphcore's own example of a healthy IPU-M2000, which its host reaches over the network, shows 2.9 GB/s from the
    # IPU
    min_ipu_bandwidth_gb_per_s: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="minimum for IPUs, GB/s; below it fails; 0: only compared with each other",
    )
    min_share_of_link: float = Field(
        default=0.25, ge=0, le=1, description="share of the bandwidth of its PCIe links; below it fails"
    )
    warn_share_of_link: float = Field(
        default=0.6, ge=0, le=1, description="share of the bandwidth of its PCIe links; below it warns"
    )
    min_share_of_others: float = Field(
        default=0.5, ge=0, le=1, description="share of the median of the node's equal devices; below it fails"
    )
    warn_share_of_others: float = Field(
        default=0.8, ge=0, le=1, description="share of the median of the node's equal devices; below it warns"
    )
    expected: Path | None = Field(default=None, description="YAML file of GPU models on top of the shipped one")


def _limits(parameters: PciebwParameters) -> "PciebwLimits":
    from muster_checks.pciebw.judge import PciebwLimits

    return PciebwLimits(**parameters.model_dump(exclude={"expected"}))


async def _probe(node: NodeView, parameters: PciebwParameters) -> Sequence[Finding]:
    from muster_checks.pciebw.probe import probe

    return await probe(node, _limits(parameters), parameters.expected)


def _recorded(text: bytes, parameters: PciebwParameters) -> Sequence[Finding] | None:
    from muster_checks.nvidia.models import gpu_models
    from muster_checks.pciebw.sample import judge_recorded

    return judge_recorded(text, _limits(parameters), gpu_models(parameters.expected))


PCIEBW = Check(
    name="pciebw",
    description="bandwidth between the host and each GPU or IPU, measured",
    cost=Cost.HEAVY,
    parameters=PciebwParameters,
    timeout_s=1500.0,  # 8 GPUs take seconds; this covers every tool in turn, each hanging
    period_s=3600.0,
    devices=("gpu", "ipu"),
    probe=_probe,
    recorded=_recorded,
    reads="nvbandwidth, or libcuda.so.1 (in a child process), or dcgmi diag -r pcie; gc-hosttraffictest for IPUs; "
    "/sys/bus/pci/devices/*/max_link_speed and _width",
    ran_on="recorded output of nvbandwidth and dcgmi; our own copies on a CUDA driver made for tests, not on real "
    "hardware",
    examples=("check=pciebw", "check=pciebw&min_bandwidth_gb_per_s=20"),
)

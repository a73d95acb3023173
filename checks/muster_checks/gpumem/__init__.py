"""The check ``gpumem``: runs arithmetic and memory tests on each GPU and verifies every result.

muster_checks.cuda runs the tests in a child process. judge.py compares the rates with the model's peaks and with other
GPUs of the node.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding

if TYPE_CHECKING:
    from muster_checks.gpumem.judge import GpumemLimits


class GpumemParameters(Parameters):
    memory_share: float = Field(
        default=0.9, gt=0, le=0.95, description="share of the free memory to fill with patterns"
    )
    # STREAM-like kernels reach 85 to 93 % of the datasheet's memory bandwidth on V100 to H100 (NVIDIA's and others'
    # published figures). Our DGEMM does not use tensor cores, and its share of the vector units' peak has not been
    # measured on hardware yet, so that share only warns.
    min_share_of_bandwidth: float = Field(
        default=0.5, ge=0, le=1, description="share of the model's peak below which it fails"
    )
    warn_share_of_bandwidth: float = Field(
        default=0.7, ge=0, le=1, description="share of the model's peak below which it warns"
    )
    warn_share_of_flops: float = Field(
        default=0.25, ge=0, le=1, description="share of the model's FP64 peak below which it warns"
    )
    min_share_of_others: float = Field(
        default=0.5, ge=0, le=1, description="share of the node's equal GPUs below which it fails"
    )
    warn_share_of_others: float = Field(
        default=0.8, ge=0, le=1, description="share of the node's equal GPUs below which it warns"
    )
    gpu: str = Field(
        default="",
        pattern=r"^(|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])$",
        description="PCI address of the only GPU to test, such as 0000:3b:00.0; default: all",
    )
    expected: Path | None = Field(default=None, description="YAML file of GPU models that overrides the shipped table")


def _limits(parameters: GpumemParameters) -> "GpumemLimits":
    from muster_checks.gpumem.judge import GpumemLimits

    return GpumemLimits(**parameters.model_dump(exclude={"expected", "memory_share", "gpu"}))


async def _probe(node: NodeView, parameters: GpumemParameters) -> Sequence[Finding]:
    from muster_checks.gpumem.probe import probe

    return await probe(node, parameters, _limits(parameters))


def _recorded(text: bytes, parameters: GpumemParameters) -> Sequence[Finding] | None:
    from muster_checks.gpumem.probe import judge_recorded
    from muster_checks.nvidia.models import gpu_models

    return judge_recorded(text, _limits(parameters), gpu_models(parameters.expected))


GPUMEM = Check(
    name="gpumem",
    description="DAXPY, DGEMM and memory patterns on each GPU: verifies the results and compares the rates",
    cost=Cost.HEAVY,
    parameters=GpumemParameters,
    timeout_s=1300.0,  # 8 GPUs take seconds; this allows for each GPU in turn to hang
    period_s=3600.0,
    devices=("gpu",),
    one_device="gpu",  # it loads the cores and the memory of its GPU; over PCIe go only kernels and results
    probe=_probe,
    recorded=_recorded,
    reads="libcuda.so.1 (in a child process; no CUDA toolkit is needed)",
    ran_on="a test CUDA driver; the kernels were assembled for sm_60 to sm_120 and ran in an interpreter of their PTX; "
    "not on real hardware",
    examples=("check=gpumem", "check=gpumem&memory_share=0.5"),
)

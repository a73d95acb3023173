"""The check ``nccl``: an all-reduce over all GPUs of the node is correct and reaches the bandwidth of its links."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class NcclParameters(Parameters):
    min_bus_bandwidth_gb_per_s: float | None = Field(
        default=None, gt=0, description="minimum bus bandwidth at the largest size, GB/s; default: by model, if known"
    )
    size_mib: int = Field(default=1024, ge=1, le=16384, description="largest message, MiB")
    run_timeout_s: float = Field(default=180.0, gt=0, le=1800, description="seconds for the whole run")
    expected: Path | None = Field(default=None, description="YAML file of rows that add to or change the shipped ones")


async def _probe(node: NodeView, parameters: NcclParameters) -> Sequence[Finding]:
    from muster_checks.nccl.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: NcclParameters) -> Sequence[Finding] | None:
    from muster_checks.nccl.probe import judge_recorded

    return judge_recorded(text, parameters)


NCCL = Check(
    name="nccl",
    description="an all-reduce over all GPUs of the node: result, and bandwidth of the links",
    cost=Cost.HEAVY,
    parameters=NcclParameters,
    timeout_s=1860.0,
    devices=("gpu",),
    period_s=3600.0,
    probe=_probe,
    recorded=_recorded,
    reads="all_reduce_perf (NVIDIA's nccl-tests; not packaged, built from source)",
    ran_on="output in the published form of nccl-tests, not on real GPUs",
    examples=("check=nccl", "check=nccl&min_bus_bandwidth_gb_per_s=440"),
)

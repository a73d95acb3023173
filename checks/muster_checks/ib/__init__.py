"""The check ``ib``: InfiniBand and RoCE ports: state, rate against expectation and siblings, rise of error counters.

A port's counters are small and stop at their maximum (drivers/infiniband/core/sysfs.c: 4 bits for buffer overruns and
link integrity, 8 for lost links, 16 for symbol errors), and nobody clears them: a healthy node with eight H100 shows 15
buffer overruns on every port. Only a rise is meaningful; thresholds.yaml has the limits.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class IbParameters(Parameters):
    ports: str = Field(
        default="*", max_length=1024, description="comma-separated globs of the devices to check, e.g. mlx5_[0-7]"
    )
    expected_ports: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="minimum number of these ports that must be active (default: not judged)",
    )
    min_rate_gb_per_s: float | None = Field(
        default=None, gt=0, description="rate below which an active port fails, Gb/s (default: not judged)"
    )
    expected: Path | None = Field(default=None, description="YAML file of rows that add to or change the shipped ones")
    first_interval_s: float = Field(
        default=1.0, ge=0.0, le=10.0, description="seconds between the two readings of the first run"
    )


async def _probe(node: NodeView, parameters: IbParameters) -> Sequence[Finding]:
    from muster_checks.ib.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IbParameters) -> Sequence[Finding] | None:
    from muster_checks.ib.probe import judge_recorded

    return judge_recorded(text, parameters)


IB = Check(
    name="ib",
    description="InfiniBand and RoCE ports: state, rate, link flaps and rising error counters",
    cost=Cost.LIGHT,
    parameters=IbParameters,
    timeout_s=20.0,
    devices=("nic", "host"),
    period_s=60.0,
    probe=_probe,
    recorded=_recorded,
    reads="/sys/class/infiniband: state, phys_state, rate, counters and hw_counters of each port",
    ran_on=(
        "recorded /sys/class/infiniband of a healthy node with 8 H100 and ConnectX-7 (gpud), not on real hardware; "
        "faults simulated by changing values in that recording; ibstat (only recorded) in the form of its source"
    ),
    examples=("check=ib", "check=ib&ports=mlx5_?&expected_ports=8&min_rate_gb_per_s=400"),
)

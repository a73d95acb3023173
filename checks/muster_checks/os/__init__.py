"""The check ``os``: kernel limits that are nearly reached, and faults that the kernel recorded."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class OsParameters(Parameters):
    # conntrack drops packets when full; 90 % leaves time to act, like the kubelet's eviction thresholds
    max_share: float = Field(default=0.9, gt=0, le=1, description="share of a kernel limit in use above which it warns")
    modules: str = Field(
        default="",
        max_length=2048,
        description="comma-separated kernel modules that must be loaded, e.g. nvidia_peermem",
    )
    min_free_2mib_blocks: int = Field(
        default=0, ge=0, description="free memory blocks of 2 MiB or more below which it warns; 0: only measured"
    )
    nfs_timeouts: int = Field(
        default=0, ge=0, description="major timeouts of one NFS mount within the window above which it warns"
    )
    window_s: float = Field(default=600.0, gt=0, description="seconds over which NFS timeouts are counted")


async def _probe(node: NodeView, parameters: OsParameters) -> Sequence[Finding]:
    from muster_checks.os.probe import probe

    return await probe(node, parameters)


OS = Check(
    name="os",
    description="kernel limits (connection tracking, files, threads), kernel state, modules, FUSE and NFS",
    cost=Cost.LIGHT,
    parameters=OsParameters,
    timeout_s=10.0,
    devices=("host",),
    period_s=60.0,
    probe=_probe,
    reads="/proc/sys, /proc/loadavg, /proc/buddyinfo, /proc/modules, /proc/1/mountstats, /sys/fs/fuse/connections",
    ran_on="real hardware: the limits and the kernel's state; FUSE, modules and NFS on hand-made files",
    examples=("check=os", "check=os&modules=nvidia_peermem"),
)

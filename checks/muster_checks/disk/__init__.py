"""The check ``disk``: disk health, RAID arrays, and file systems that are read-only or full."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding

# where the kubelet, container runtimes (rancher: of k3s and RKE2), etcd and the system write
NODE_PATHS = (
    "/,/var,/var/lib/kubelet,/var/lib/containerd,/var/lib/docker,/var/lib/containers,/var/lib/rancher,/var/lib/etcd,"
    "/var/log,/tmp"
)


class DiskParameters(Parameters):
    # the kubelet's default hard eviction thresholds nodefs.available and nodefs.inodesFree
    min_free_percent: float = Field(
        default=10,
        ge=0,
        le=100,
        description="percentage of free space below which a file system that the node needs warns",
    )
    min_free_inodes_percent: float = Field(
        default=5,
        ge=0,
        le=100,
        description="percentage of free inodes below which a file system that the node needs warns",
    )
    paths: str = Field(
        default=NODE_PATHS,
        max_length=4096,
        description="comma-separated folders; the node needs the file systems that hold them",
    )
    min_nvme: int | None = Field(default=None, ge=1, description="local NVMe disks that must exist")
    # NVMe base specification, Percentage Used: at 100 the rated endurance is consumed
    max_wear_percent: float = Field(
        default=100, gt=0, le=255, description="wear of an NVMe disk, in percent, above which it warns"
    )
    smart: bool = Field(
        default=True,
        description="query each disk's own health data (SMART): needs smartctl or nvme, and root or the agent's helper",
    )
    command_timeout_s: float = Field(default=15.0, gt=0, le=120, description="seconds for one disk to answer")
    mount_timeout_s: float = Field(default=5.0, gt=0, le=60, description="seconds for one file system to answer")


async def _probe(node: NodeView, parameters: DiskParameters) -> Sequence[Finding]:
    from muster_checks.disk.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: DiskParameters) -> Sequence[Finding] | None:
    from muster_checks.disk.probe import judge_recorded

    return judge_recorded(text, parameters)


DISK = Check(
    name="disk",
    description="NVMe and SATA disks (state, SMART), RAID arrays, file systems that are read-only or full",
    cost=Cost.LIGHT,
    parameters=DiskParameters,
    timeout_s=60.0,
    # SMART data changes within hours and costs a process per disk; the kernel log shows a read-only remount at once
    period_s=300.0,
    devices=("disk", "host"),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "/sys/class/nvme, /sys/block, /sys/bus/pci/devices, /proc/1/mountinfo, statvfs(2), "
        "smartctl (package smartmontools) or nvme (package nvme-cli)"
    ),
    ran_on=(
        "real file systems of a virtual machine (kernel 6.18): ext4 after an error, XFS after a shutdown, a full one, "
        "btrfs, squashfs; smartctl and nvme on output in the form of published samples, not on real disks"
    ),
    examples=("check=disk", "check=disk&min_nvme=8&paths=/,/var/lib/kubelet,/scratch"),
)

"""Finds what a kernel line names on this node: devices (0000:3b:00.0, eth2) and processes.

Devices get the names that other checks use (mlx5_0). The names come from /sys and are cached, because a device that has
just failed may have disappeared from there.
"""

import re
from collections.abc import Callable
from pathlib import Path

from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView

KEPT_LIMIT = 1024
# A pod's cgroup; without "kubepods" as an agent in a cgroup namespace of its own sees it: 0::/../../pod1b2c3d4e-.../id
_OF_TENANT = re.compile(r"kubepods|/pod[0-9a-f]{8}|/user\.slice/")
_OF_ROOT = re.compile(r"^Uid:\s+0\s+0\s", re.MULTILINE)  # real and effective user
_UNSAFE = frozenset("/\\*?[] ")
_GAUDI = re.compile(r"hl[0-9]{1,3}")


def _only_child(folder: Path, prefix: str = "") -> str | None:
    """The name of the first entry, or None without one."""
    try:
        return min((child.name for child in folder.iterdir() if child.name.startswith(prefix)), default=None)
    except (OSError, ValueError):  # ValueError: not a valid file name
        return None


def is_node_process(node: NodeView, pid: int, name: str) -> bool:
    """Whether the process belongs to the node itself: it runs as root, and by its cgroup not in a pod or a login.

    The cgroup alone does not tell: cron jobs, and logins without pam_systemd, run in a service of the system.
    False if /proc has no process with this id and name: it has ended, so it is no longer blocked, or the agent does not
    see the node's processes.
    """
    process = node.path(f"/proc/{pid}")
    try:
        if (process / "comm").read_text("utf-8", "replace").strip() != name:
            return False
        if _OF_ROOT.search((process / "status").read_text("utf-8", "replace")) is None:
            return False
        return _OF_TENANT.search((process / "cgroup").read_text("utf-8", "replace")) is None
    except OSError:
        return False


def sysfs_names(node: NodeView) -> Callable[[str], str]:
    """A function from a component to its canonical name; a device that /sys does not list keeps its name.

    ``nic/<PCI address>`` and ``nic/<interface>`` -> ``nic/<RDMA device>``; ``disk/<PCI address>`` -> ``disk/nvme0``;
    ``gpu/hl0`` (Gaudi) -> ``gpu/<PCI address>``
    """
    kept: dict[str, str] = {}

    def look(kind: str, device: str) -> str | None:
        pci = node.path(f"/sys/bus/pci/devices/{device}")
        if kind == "disk":
            return _only_child(pci / "nvme", "nvme")
        if kind == "gpu":
            return read_text(node.path(f"/sys/class/habanalabs/{device}/pci_addr"), 64)
        return _only_child(pci / "infiniband") or _only_child(node.path(f"/sys/class/net/{device}/device/infiniband"))

    def name(component: str) -> str:
        known = kept.get(component)
        if known is not None:
            return known
        kind, _, device = component.partition("/")
        # the name comes from a log line, which any process may have written
        if kind == "gpu":
            if not _GAUDI.fullmatch(device):
                return component
        elif kind not in ("nic", "disk") or not device or device[0] == "." or not _UNSAFE.isdisjoint(device):
            return component
        found = look(kind, device)
        if not found:
            return component
        if len(kept) < KEPT_LIMIT:
            kept[component] = f"{kind}/{found}"
        return f"{kind}/{found}"

    return name

"""Gives a device its one name: the kernel log says 0000:3b:00.0 or eth2 where every other check says mlx5_0.

Answers come from /sys and are kept, because a device that has just died may be gone from there.
"""

from collections.abc import Callable
from pathlib import Path

from muster_checks.base.declaration import NodeView

KEPT_LIMIT = 1024
_UNSAFE = frozenset("/\\*?[] ")


def _only_child(folder: Path, prefix: str = "") -> str | None:
    """The name of the first entry, or None without one."""
    try:
        return min((child.name for child in folder.iterdir() if child.name.startswith(prefix)), default=None)
    except (OSError, ValueError):  # ValueError: a name no file can have
        return None


def sysfs_names(node: NodeView) -> Callable[[str], str]:
    """A function from a component to its canonical name; what /sys does not know stays as it is.

    ``nic/<PCI address>`` and ``nic/<interface>`` -> ``nic/<RDMA device>``; ``disk/<PCI address>`` -> ``disk/nvme0``
    """
    kept: dict[str, str] = {}

    def look(kind: str, device: str) -> str | None:
        pci = node.path(f"/sys/bus/pci/devices/{device}")
        if kind == "disk":
            return _only_child(pci / "nvme", "nvme")
        return _only_child(pci / "infiniband") or _only_child(node.path(f"/sys/class/net/{device}/device/infiniband"))

    def name(component: str) -> str:
        known = kept.get(component)
        if known is not None:
            return known
        kind, _, device = component.partition("/")
        # the device comes from a log line that anyone may have written
        if kind not in ("nic", "disk") or not device or device[0] == "." or not _UNSAFE.isdisjoint(device):
            return component
        found = look(kind, device)
        if found is None:
            return component
        if len(kept) < KEPT_LIMIT:
            kept[component] = f"{kind}/{found}"
        return f"{kind}/{found}"

    return name

"""Finds out whether a disk holds file systems that the node itself needs, by the node's mounts.

Volumes of pods (CSI), loop devices and disks for data may become read-only without harm to the node: to reboot it would
not help, and would end the other pods.
"""

import time
from collections.abc import Callable

from muster_checks.base.declaration import NodeView
from muster_checks.disk import NODE_PATHS
from muster_checks.disk.mounts import find_serving_mount, group_filesystems, read_mounts

KEPT_S = 10.0  # a fault of the storage stops hundreds of volumes at once: the mounts are not read for each


def is_loop_device(disk: str) -> bool:
    return disk.startswith("loop")


def node_disks(node: NodeView, clock: Callable[[], float] = time.monotonic) -> Callable[[str], bool]:
    """A function that tells of a disk (``nvme0n1p2``, ``dm-0``) whether it holds a folder of :data:`NODE_PATHS`.

    Also True if none of these folders is on a local file system: then the mounts that can be read are not the node's.
    """
    needed: frozenset[str] = frozenset()
    read_at = float("-inf")

    def is_needed(disk: str) -> bool:
        nonlocal needed, read_at
        if is_loop_device(disk):
            return False
        if clock() - read_at >= KEPT_S:
            read_at, needed = clock(), _needed_disks(node)
        return not needed or disk in needed

    return is_needed


def _needed_disks(node: NodeView) -> frozenset[str]:
    mounts = read_mounts(node)
    serving = find_serving_mount(mounts, NODE_PATHS.split(","))
    return frozenset(found.name for found in group_filesystems(node, mounts) if found.device in serving)

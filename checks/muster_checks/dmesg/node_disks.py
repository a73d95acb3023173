"""Finds out whether a disk holds file systems that the node itself needs, by the node's mounts.

Volumes of pods (CSI), loop devices and disks for data may become read-only without harm to the node: to reboot it would
not help, and would end the other pods.
"""

import time
from collections.abc import Callable

import msgspec

from muster_checks.base.bounded_read import names_in
from muster_checks.base.declaration import NodeView
from muster_checks.disk import NODE_PATHS
from muster_checks.disk.folders import follow_links, split_paths
from muster_checks.disk.mounts import LOCAL_TYPES, block_name, find_serving_mount, read_mounts

KEPT_S = 10.0  # a fault of the storage stops hundreds of volumes at once: the mounts are not read for each


class _Disks(msgspec.Struct, frozen=True):
    """needed: names of disks that hold the node's folders; others: those of all others that are mounted. certain: the
    kernel's names of all needed ones are known."""

    needed: frozenset[str]
    others: frozenset[str]
    certain: bool


def is_loop_device(disk: str) -> bool:
    return disk.startswith("loop")


def node_disks(
    node: NodeView, paths: str = NODE_PATHS, clock: Callable[[], float] = time.monotonic
) -> Callable[[str], bool]:
    """A function that tells of a disk (``nvme0n1p2``, ``dm-0``) whether it holds one of the folders ``paths``.

    Also True if none of these folders is on a local file system: then the mounts that can be read are not the node's.
    If the kernel's name of a disk that holds one cannot be found, True for every disk without a known other use.
    Symbolic links are read at once, and never again: a disk that hangs must not hang the reader of the kernel log.
    """
    folders = [follow_links(node.root, path) for path in split_paths(paths)]
    disks = _Disks(frozenset(), frozenset(), certain=False)
    read_at = float("-inf")

    def is_needed(disk: str) -> bool:
        nonlocal disks, read_at
        if is_loop_device(disk):
            return False
        if clock() - read_at >= KEPT_S:
            read_at, disks = clock(), _read_disks(node, folders)
        return not disks.needed or disk in disks.needed or not (disks.certain or disk in disks.others)

    return is_needed


def _read_disks(node: NodeView, folders: list[str]) -> _Disks:
    mounts = read_mounts(node)
    serving = find_serving_mount(mounts, folders)
    # one mount of each file system is enough
    local = {mount.device: mount for mount in mounts if mount.kind in LOCAL_TYPES}
    names = {device: block_name(node, mount) for device, mount in local.items()}
    needed = {name for device, name in names.items() if device in serving}
    pools = node.path("/sys/fs/btrfs")
    for pool in names_in(pools):
        # mountinfo names one disk of a btrfs, the kernel log may name another
        members = set(names_in(pools / pool / "devices"))
        needed |= members if members & needed else set()
    sources = [name for device, name in names.items() if device in serving and local[device].source.startswith("/dev/")]
    return _Disks(
        needed=frozenset(needed),
        others=frozenset(names.values()) - needed,
        # the kernel has no disk "mapper/vg-root"; "root" is the one it mounted first
        certain=not any("/" in name or name == "root" for name in sources),
    )

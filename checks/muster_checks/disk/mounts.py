"""Local file systems and their mount options, from mountinfo (proc_pid_mountinfo(5)).

A file system that an error made read-only differs from one that was mounted read-only: the mount itself still shows
``rw``, but the file system's options show ``ro`` (btrfs, older ext4), or ``emergency_ro`` or ``shutdown`` (newer ext4,
observed on kernel 6.18). XFS shows nothing here, but access to its folders returns EIO. Read-only types (squashfs,
iso9660, erofs) also show rw over ro, so only writable types are judged.

psutil is not used: its disk_partitions() returns neither device numbers nor the file system's own options, and lists
the mounts of the agent's container instead of the node's.
"""

import re

import msgspec

from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView
from muster_checks.disk.folders import follow_links

LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "bcachefs", "zfs", "vfat"})
STOPPED = frozenset({"emergency_ro", "shutdown"})
MOUNTINFO_LIMIT_BYTES = 16 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")
_DEVICE = re.compile(r"\d{1,10}:\d{1,10}")
# volumes of pods: space and state are their owners' business, and another node would report the same
_OF_PODS = re.compile(r"/kubelet/(?:pods|plugins)/")


class Mount(msgspec.Struct, frozen=True):
    """One line. device: ``259:3``; root: the folder within the file system; point: the mount point."""

    device: str
    root: str
    point: str
    options: frozenset[str]
    kind: str
    source: str
    super_options: frozenset[str]


class Filesystem(msgspec.Struct, frozen=True):
    """One local file system with all its mounts. device: ``259:3``; name: of its block device (``nvme0n1p2``)."""

    name: str
    device: str
    kind: str
    points: tuple[str, ...]
    stopped: bool

    @property
    def point(self) -> str:
        """The name people use: its shortest mount point."""
        return min(self.points, key=len)


def parse_mountinfo(text: str) -> list[Mount]:
    """Lines in any other form are skipped."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 3 or not _DEVICE.fullmatch(fields[2]):
            continue
        found.append(
            Mount(
                device=fields[2],
                root=_plain(fields[3]),
                point=_plain(fields[4]),
                options=frozenset(fields[5].split(",")),
                kind=rest[0],
                source=_plain(rest[1]),
                super_options=frozenset(rest[2].split(",")),
            )
        )
    return found


def read_mounts(node: NodeView) -> list[Mount]:
    """The mounts of the node's first process, or our own if those cannot be read: an agent in a container differs."""
    for name in ("/proc/1/mountinfo", "/proc/self/mountinfo"):
        if mounts := parse_mountinfo(read_text(node.path(name), MOUNTINFO_LIMIT_BYTES) or ""):
            return mounts
    return []


def group_filesystems(node: NodeView, mounts: list[Mount]) -> list[Filesystem]:
    by_device: dict[str, list[Mount]] = {}
    for mount in mounts:
        if mount.kind in LOCAL_TYPES and not _OF_PODS.search(mount.point):
            by_device.setdefault(mount.device, []).append(mount)
    return [
        Filesystem(
            name=block_name(node, group[0]),
            device=device,
            kind=group[0].kind,
            points=tuple(mount.point for mount in group),
            stopped=_is_stopped(group),
        )
        for device, group in by_device.items()
    ]


def find_serving_mount(mounts: list[Mount], paths: list[str]) -> frozenset[str]:
    """The devices whose file systems hold these folders."""
    found = set()
    for path in paths:
        # of equal mount points the last one is on top
        holding = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
        if holding:
            found.add(max(enumerate(holding), key=lambda each: (len(each[1].point), each[0]))[1].device)
    return frozenset(found)


def _is_stopped(group: list[Mount]) -> bool:
    if any(mount.super_options & STOPPED for mount in group):
        return True
    # a bind mount elsewhere may show rw above a file system that was mounted read-only on purpose
    whole = [mount for mount in group if mount.root == "/" or mount.kind == "btrfs"]
    return bool(whole) and all("rw" in mount.options and "ro" in mount.super_options for mount in whole)


def block_name(node: NodeView, mount: Mount) -> str:
    """The name of its disk as in the kernel log (``dm-0``); as in mountinfo if it cannot be found."""
    try:
        return node.path(f"/sys/dev/block/{mount.device}").resolve(strict=True).name
    except (OSError, RuntimeError):
        pass  # the number of a btrfs or zfs is not that of a disk
    if not mount.source.startswith("/dev/"):
        return mount.source or mount.point
    # udev makes links to the disks: /dev/mapper/vg-root, /dev/disk/by-uuid/..., sometimes /dev/root
    return follow_links(node.root, mount.source).removeprefix("/dev/")


def _plain(text: str) -> str:
    r"""Decode a name: mountinfo writes a space as ``\040``."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)

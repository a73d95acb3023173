"""Local file systems and how they are mounted, from mountinfo (proc_pid_mountinfo(5)).

A file system that was put read-only by an error differs from one that was mounted so: the mount itself still says
``rw``, the file system below it ``ro`` (btrfs, older ext4), or no longer ``ro`` but ``emergency_ro`` or ``shutdown``
(newer ext4, seen on kernel 6.18). XFS shows nothing here, but its folders give EIO. Types that can only be read
(squashfs, iso9660, erofs) say rw over ro, too, so only types that can be written are looked at.

Read here and not by psutil: its disk_partitions() has neither device numbers nor the file system's own options, and
lists the mounts of the agent's container, not those of the node.
"""

import re

import msgspec

from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView

LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "bcachefs", "zfs", "vfat"})
STOPPED = frozenset({"emergency_ro", "shutdown"})
MOUNTINFO_LIMIT_BYTES = 16 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")
_DEVICE = re.compile(r"\d{1,10}:\d{1,10}")
# volumes of pods: their space and state are their owners' affair, and another node would see the same
_OF_PODS = re.compile(r"/kubelet/(?:pods|plugins)/")


class Mount(msgspec.Struct, frozen=True):
    """One line. device: ``259:3``; root: the folder within the file system; point: where it is mounted."""

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
        """Where people know it: the shortest place it is mounted at."""
        return min(self.points, key=len)


def parse_mountinfo(text: str) -> list[Mount]:
    """Lines that are none are passed over."""
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
    """The mounts of the node's first process, else our own: an agent in a container has its own."""
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
            name=_block_name(node, group[0]),
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
        # the last one of equals lies on top
        holding = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
        if holding:
            found.add(max(enumerate(holding), key=lambda each: (len(each[1].point), each[0]))[1].device)
    return frozenset(found)


def _is_stopped(group: list[Mount]) -> bool:
    if any(mount.super_options & STOPPED for mount in group):
        return True
    # a folder bound elsewhere may say rw above a file system that was mounted read-only on purpose
    whole = [mount for mount in group if mount.root == "/" or mount.kind == "btrfs"]
    return bool(whole) and all("rw" in mount.options and "ro" in mount.super_options for mount in whole)


def _block_name(node: NodeView, mount: Mount) -> str:
    try:
        place = node.path(f"/sys/dev/block/{mount.device}").resolve(strict=True)
    except (OSError, RuntimeError):
        # btrfs and zfs have no block device number of their own
        return mount.source.removeprefix("/dev/") or mount.point
    return place.name


def _plain(text: str) -> str:
    r"""A space in a name is written ``\040``."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)

"""Reads the space of file systems, each in its own thread: one that hangs must not hang the check.

A thread that waits inside the kernel cannot be stopped. It is left behind, and its file system is not queried again
while it waits, so there is never more than one thread per file system.

psutil.disk_usage() has no inodes, so this module calls statvfs(2).
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster_checks.base.declaration import NodeView
from muster_checks.disk.mounts import Filesystem


class DiskSpace(msgspec.Struct, frozen=True):
    """Space available to unprivileged users, as the kubelet counts. free_inodes_percent: None for dynamic inodes."""

    free_percent: float
    free_inodes_percent: float | None
    free_bytes: int


ReadSpace = Callable[[list[Path], str], DiskSpace | None]


class SpaceRequest:
    """One query under way. At the end ``space`` or ``error`` is set; neither if the file system is not visible."""

    def __init__(self, read: ReadSpace, places: list[Path], device: str) -> None:
        self.space: DiskSpace | None = None
        self.error: OSError | None = None
        self._read, self._places, self._device = read, places, device
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()
        self.ended = asyncio.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True, name=f"statvfs {device}")
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.space = self._read(self._places, self._device)
        except OSError as error:
            self.error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the result
            self._loop.call_soon_threadsafe(self.ended.set)


class SpaceReader:
    """The queries under way; lives as long as the process. ``read``: queries the kernel (:func:`read_space`)."""

    def __init__(self, read: ReadSpace | None = None) -> None:
        self._read = read or read_space
        self._asking: dict[tuple[str, str], SpaceRequest] = {}

    async def ask(self, node: NodeView, filesystem: Filesystem, timeout_s: float) -> DiskSpace | None:
        """None if the file system is not visible to this process. Raises OSError, TimeoutError without an answer."""
        key = filesystem.device, str(node.root)
        asking = self._asking.get(key)
        if asking is None or not asking.thread.is_alive():
            # the second path is for an agent that sees the node's processes, but not its root
            places = [node.path(filesystem.point), node.path("/proc/1/root" + filesystem.point)]
            asking = self._asking[key] = SpaceRequest(self._read, places, filesystem.device)
        # one that another run began may answer yet; one that has hung for longer than that is not waited for
        async with asyncio.timeout_at(max(asking.began + timeout_s, asyncio.get_running_loop().time())):
            await asking.ended.wait()
        if self._asking.get(key) is asking:
            del self._asking[key]
        if asking.error is not None:
            raise asking.error
        return asking.space


def read_space(places: list[Path], device: str) -> DiskSpace | None:
    """The space of the file system ``device`` at the first of ``places`` where it is visible. Raises OSError."""
    for place in places:
        try:
            found = place.stat()
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue
        # in our mount namespace another file system may be mounted there; btrfs and zfs (major 0) renumber each folder
        if not device.startswith("0:") and device != f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}":
            continue
        return _space(os.statvfs(place))
    return None


def _space(found: os.statvfs_result) -> DiskSpace | None:
    if not found.f_blocks:
        return None
    return DiskSpace(
        free_percent=100 * found.f_bavail / found.f_blocks,
        free_inodes_percent=100 * found.f_favail / found.f_files if found.f_files else None,
        free_bytes=found.f_bavail * found.f_frsize,
    )

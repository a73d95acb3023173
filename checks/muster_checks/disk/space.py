"""Asks file systems for their space, each in a thread of its own: one that hangs must not hang the check.

A thread that waits inside the kernel cannot be ended. It is left behind, and while it waits its file system is not
asked again, so there is never more than one for each.

psutil.disk_usage() has no inodes, so statvfs(2) is called here.
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
    """For whoever is not root, as the kubelet counts. free_inodes_percent: None where inodes are made at need."""

    free_percent: float
    free_inodes_percent: float | None
    free_bytes: int


ReadSpace = Callable[[list[Path], str], DiskSpace | None]


class SpaceRequest:
    """One file system that is being asked. At the end ``space`` or ``error`` is set; neither if it is not visible."""

    def __init__(self, read: ReadSpace, places: list[Path], device: str) -> None:
        self.space: DiskSpace | None = None
        self.error: OSError | None = None
        self._read, self._places, self._device = read, places, device
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True, name=f"statvfs {device}")
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.space = self._read(self._places, self._device)
        except OSError as error:
            self.error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed by now: nobody waits
            self._loop.call_soon_threadsafe(self.ended.set)


class SpaceReader:
    """Who is being asked; lives as long as the process. ``read``: asks the kernel (:func:`read_space`)."""

    def __init__(self, read: ReadSpace | None = None) -> None:
        self._read = read or read_space
        self._asking: dict[tuple[str, str], SpaceRequest] = {}

    async def ask(self, node: NodeView, filesystem: Filesystem, timeout_s: float) -> DiskSpace | None:
        """None where the file system is not visible from here. Raises OSError, TimeoutError if it does not answer."""
        key = filesystem.device, str(node.root)
        before = self._asking.get(key)
        if before is not None and before.thread.is_alive():
            raise TimeoutError
        # the second: for an agent that has the node's processes before it, but not its root
        places = [node.path(filesystem.point), node.path("/proc/1/root" + filesystem.point)]
        asking = self._asking[key] = SpaceRequest(self._read, places, filesystem.device)
        async with asyncio.timeout(timeout_s):
            await asking.ended.wait()
        del self._asking[key]
        if asking.error is not None:
            raise asking.error
        return asking.space


def read_space(places: list[Path], device: str) -> DiskSpace | None:
    """The space of the file system ``device`` at the first of ``places`` where it is to be seen. Raises OSError."""
    for place in places:
        try:
            found = place.stat()
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue
        # another file system lies there in our own mount name space; btrfs and zfs (major 0) number each folder anew
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

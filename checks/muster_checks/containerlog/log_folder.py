"""Opens files and folders below the kubelet's log folder, and nothing else.

A pod with a writable hostPath can put symbolic links, FIFOs and devices there. So each component of a path is opened
without following links, its type is examined before it is opened for reading, and only folders and regular files are.
Opening a FIFO would wait for a writer, and opening a device may act on it.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster_checks.base.declaration import LogOpener

NAME_BYTES = 255  # Linux's limit
DEPTH = 3  # NAMESPACE_POD_UID/CONTAINER/FILE
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotALog(OSError):
    """There is something else than a folder or a regular file, which is not opened."""


def open_beneath(folder: Path, parts: Sequence[str]) -> int:
    """A descriptor for reading the folder or regular file ``parts`` below ``folder``.

    ``folder`` itself may be reached through links: the administrator chose it. Raises OSError, NotALog.
    """
    if len(parts) > DEPTH or not all(map(_is_name, parts)):
        raise NotALog(errno.EINVAL, "not the path of a container's log", "/".join(parts))
    current = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _LOOK, dir_fd=current)
            os.close(current)
            current = inner
        mode = os.fstat(current).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
            raise NotALog(errno.EINVAL, f"is {kind}", "/".join(parts))
        return os.open(f"/proc/self/fd/{current}", _READ)  # the very thing that was examined
    except NotADirectoryError:
        raise NotALog(errno.ENOTDIR, "a part of the path is no folder", "/".join(parts)) from None
    finally:
        os.close(current)


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and not set(part) & {"/", "\0"} and len(os.fsencode(part)) <= NAME_BYTES


class FolderOpener:
    """Opens log files as this process. An agent without privileges uses one that asks a helper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, parts: Sequence[str], /) -> int:
        return open_beneath(self.folder, parts)


@contextmanager
def listed(opener: LogOpener, parts: Sequence[str]) -> "Iterator[Iterator[os.DirEntry[str]]]":
    """The entries of a folder. Raises OSError, NotALog."""
    handle = opener.open(parts)
    try:
        with os.scandir(handle) as entries:
            yield entries
    finally:
        os.close(handle)

"""Follows the log files of one container, across rotation, restarts, truncation and floods.

Names (Kubernetes, pkg/kubelet/logs): ``N.log`` of the Nth restart; the kubelet renames it to ``N.log.YYYYMMDD-hhmmss``
when it is full, and compresses it (``.gz``) at the next rotation. A file that is followed stays open meanwhile, so its
end is read even if it has been compressed or deleted.
"""

import os
import re
from collections.abc import Sequence
from itertools import islice

import msgspec

from muster_checks.base.declaration import LogOpener
from muster_checks.containerlog.cri import TIME_BYTES, epoch_seconds
from muster_checks.containerlog.log_folder import listed

CHUNK_BYTES = 16 * 1024
LINE_BYTES = 64 * 1024  # of a line in the file; the rest is dropped. The runtimes write pieces of at most 16 KiB
BACKLOG_BYTES = 8 << 20  # of a file; beyond, all but the newest KEPT_BYTES is skipped. The kubelet rotates at 10 MiB
KEPT_BYTES = 1 << 20
NAMES_LIMIT = 1024  # entries of a container's folder that are looked at; the kubelet keeps five files

_FILE = re.compile(r"(\d{1,9})\.log(?:\.(\d{8}-\d{6})(\.gz)?)?", re.ASCII)
_CURRENT = "~"  # after every time of a rotation

Key = tuple[int, str]  # restart and time of the rotation: the order in which files were written
_NONE: Key = (-1, "")


class Piece(msgspec.Struct):
    """What one read returned.

    size: bytes read; more: there may be more to read at once; old: the lines may be older than ``since``
    skipped, missed: bytes, and compressed files, that were left out before ``lines``
    """

    lines: list[bytes]
    size: int = 0
    more: bool = False
    old: bool = False
    skipped: int = 0
    missed: int = 0
    overlong: int = 0


class ContainerLog:
    """parts: folders of the pod and of the container. since: epoch seconds; earlier lines are passed over."""

    def __init__(self, opener: LogOpener, parts: Sequence[str], since: float) -> None:
        self._opener = opener
        self._parts = tuple(parts)
        self._since = since
        self._fd = -1
        self._key = self._finished = _NONE
        self._offset = 0
        self._old_until = 0  # offset up to which lines may be older than ``since``
        self._partial = b""
        self._dropping = False  # the rest of an overlong or skipped line follows
        self._ending = False
        self._gone = False  # the open file is no longer in the folder under a plain name

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> Piece:
        """The next lines. Raises OSError, NotALog."""
        piece = Piece([])
        if self._fd < 0 and not self._open_next(piece):
            return piece
        size = os.fstat(self._fd).st_size
        if size < self._offset + len(self._partial):  # truncated
            self._move_to(0, dropping=False)
        unread = size - self._offset - len(self._partial)
        if unread > BACKLOG_BYTES:
            piece.skipped = unread - KEPT_BYTES
            self._move_to(size - KEPT_BYTES, dropping=True)
        data = os.pread(self._fd, CHUNK_BYTES, self._offset + len(self._partial))
        piece.size = len(data)
        if data:
            piece.old = self._offset < self._old_until
            self._ending = False
            self._split(data, piece)
            piece.more = True
        elif self._ending:
            self._finished = self._base()
            piece.more = self._open_next(piece)
        else:
            # the writer may have used this file between the read and the look for its successor: read it once more
            self._ending = piece.more = self._has_successor()
        return piece

    def _split(self, data: bytes, piece: Piece) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        consumed = len(self._partial) + len(data) - len(rest)
        if lines and self._dropping:
            del lines[0]
            self._dropping = False
        if len(rest) > LINE_BYTES:
            if not self._dropping:
                lines.append(rest[:LINE_BYTES])
                piece.overlong += 1
            consumed += len(rest)
            rest, self._dropping = b"", True
        piece.lines = lines
        self._offset += consumed
        self._partial = rest

    def _move_to(self, offset: int, *, dropping: bool) -> None:
        self._offset, self._partial, self._dropping = offset, b"", dropping

    # --- which file is next

    def _files(self) -> tuple[list[tuple[Key, str, int]], list[Key]]:
        """(key, name, inode) of the plain files, and the keys of the compressed ones; both in order."""
        plain: list[tuple[Key, str, int]] = []
        compressed: list[Key] = []
        with listed(self._opener, self._parts) as entries:
            for entry in islice(entries, NAMES_LIMIT):
                match = _FILE.fullmatch(entry.name)
                if match is None:
                    continue
                key = int(match[1]), match[2] or _CURRENT
                if match[3]:
                    compressed.append(key)
                else:
                    plain.append((key, entry.name, entry.inode()))
        return sorted(plain), sorted(compressed)

    def _has_successor(self) -> bool:
        plain, _ = self._files()
        mine = os.fstat(self._fd).st_ino  # while it is open, no other file has its inode
        found = [key for key, _, inode in plain if inode == mine]
        self._gone = not found
        self._key = found[0] if found else self._key
        return any(key > self._base() for key, _, _ in plain)

    def _base(self) -> Key:
        """Files up to this one have been read or passed over, once the open one has been read to its end."""
        return self._finished if self._gone else self._key

    def _open_next(self, piece: Piece) -> bool:
        """Open the oldest file that has not been read. Files that end before ``since`` are passed over."""
        self._ending = False
        plain, compressed = self._files()
        waiting = [(key, name) for key, name, _ in plain if key > self._finished]
        for key, name in waiting:
            fd = self._opener.open((*self._parts, name))
            found = os.fstat(fd)
            # some file systems list other inodes than they report, so the open file is among these
            same = self._fd >= 0 and os.path.sameopenfile(fd, self._fd)
            if (same or found.st_mtime < self._since) and key != waiting[-1][0]:
                os.close(fd)
                self._finished = key
                continue
            if same:
                os.close(fd)
                return False
            if self._key != _NONE:
                piece.missed = max(0, sum(self._finished < each < key for each in compressed) - self._gone)
            self.close()
            self._fd, self._key, self._gone = fd, key, False
            self._old_until = found.st_size
            self._move_to(find_time(fd, found.st_size, self._since), dropping=False)
            return True
        return False


def find_time(fd: int, size: int, since: float) -> int:
    """Offset of a line in a file of CRI lines, at most some chunks before the first one that is not older than
    ``since`` (epoch seconds). Their times ascend."""
    low, high = 0, size
    while high - low > 2 * CHUNK_BYTES:
        middle = (low + high) // 2
        data = os.pread(fd, CHUNK_BYTES, middle)
        begin = data.find(b"\n") + 1
        at = epoch_seconds(data[begin : begin + TIME_BYTES].partition(b" ")[0]) if begin else None
        if at is None or at >= since:  # in doubt, earlier
            high = middle
        else:
            low = middle + begin
    return low

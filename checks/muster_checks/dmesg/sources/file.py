"""Follows a plain file of kernel messages: no polling, none twice, across rotation, truncation and absence.

The file is looked at when inotify says that it, or the folder that holds it, has changed. A line counts when its
newline is there. The place is the file's inode, the offset, and the bytes just before it: an inode alone may be taken
over by another file, and a file that was emptied may have grown past the offset again.

Rotation: a renamed file is read on until its successor has something in it, since a logger goes on writing to the old
one until it is told. After a restart the old file is looked for by its inode in the same folder; a successor that was
rotated away in the meantime as well, or compressed, is not.
"""

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
from inotify_simple import INotify, flags

from muster_checks.dmesg.sources.source import LINES_PER_TURN, Batch, LineReader, ReopenDelay, SourceCounts

_log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
LINE_BYTES = 64 * 1024  # of a longer line the rest is dropped
FINGERPRINT_BYTES = 64
_FILE_EVENTS = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF
_FOLDER_EVENTS = flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVED_FROM | flags.DELETE_SELF | flags.MOVE_SELF


class FilePlace(msgspec.Struct, frozen=True):
    """``offset``: of the first line not yet dealt with, in the file ``inode``; ``before``: the bytes just before it.

    ``dropping``: the rest of an overlong line comes first. ``inode`` 0: no file yet.
    ``skipping``: what the file holds when it is first opened is passed over (``start: now``).
    """

    inode: int = 0
    offset: int = 0
    before: bytes = b""
    dropping: bool = False
    skipping: bool = False


class FileSource:
    """A :class:`~muster_checks.dmesg.sources.source.LogSource` on a plain file.

    ``complete``: it is a saved log that nobody goes on writing: its last line counts without a newline, too.
    """

    def __init__(self, path: Path, reader: LineReader, place: FilePlace, *, complete: bool = False) -> None:
        self.counts = SourceCounts()
        self._path = path
        self._complete = complete
        self._reader = reader
        self._place = place
        self._fd = -1
        self._unread: list[bytes] = []  # complete lines of the last chunk, not yet given to the reader
        self._partial = b""
        self._inotify: INotify | None = None
        self._file_watch = -1
        self._armed = False
        self._trouble = ""
        self._backoff = ReopenDelay()

    def open(self, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake

    def read(self) -> Batch:
        batch = Batch([], [])
        try:
            self._watch()
            if self._fd < 0 and not self._open_file():
                return batch
            self._read_on(batch)
        except OSError as error:
            self._give_up(error)
        return batch

    def _read_on(self, batch: Batch) -> None:
        if not self._unread and not self._is_the_same():
            _log.info("%s was truncated: read from its beginning", self._path)
            self._begin(FilePlace(inode=self._place.inode))
        taken = 0
        while taken < LINES_PER_TURN:
            if not self._unread and not self._read_chunk(batch):
                if self._place.skipping:
                    self._end_skipping()
                if self._complete and self._partial:
                    partial, self._partial = self._partial, b""
                    self._take(partial, batch, newline=b"")
                if self._succeed():
                    continue
                self._backoff.reset()
                batch.at_end = True
                return
            lines, self._unread = self._unread[: LINES_PER_TURN - taken], self._unread[LINES_PER_TURN - taken :]
            taken += max(1, len(lines))
            for raw in lines:
                self._take(raw, batch)
        batch.more = True

    def _end_skipping(self) -> None:
        """What was there at the start is passed over, a half line at its end with its other half."""
        self._advance(self._partial, dropping=bool(self._partial) or self._place.dropping)
        self._partial = b""
        self._place = msgspec.structs.replace(self._place, skipping=False)

    def _read_chunk(self, batch: Batch) -> bool:
        """Read on into ``_unread`` and ``_partial``; False at the end of the file."""
        data = os.pread(self._fd, CHUNK_BYTES, self._place.offset + len(self._partial))
        if not data:
            return False
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        self._unread = lines
        if not lines and len(self._partial) > LINE_BYTES:
            # what there is of an overlong line is its text; the rest, up to its newline, is dropped
            self._take(self._partial, batch, newline=b"", more=True)
            self._partial = b""
        return True

    def _take(self, raw: bytes, batch: Batch, *, newline: bytes = b"\n", more: bool = False) -> None:
        """One line; ``more``: the rest of it, up to its newline, is to be dropped."""
        dropping, skipping = self._place.dropping, self._place.skipping
        self._advance(raw + newline, dropping=more)
        if dropping or skipping:
            return
        self.counts.lines += 1
        if len(raw) > LINE_BYTES:
            self.counts.overlong += 1
            raw = raw[:LINE_BYTES]
        line = self._reader.take(raw)
        self.counts.malformed = self._reader.malformed
        if line is not None:
            batch.lines.append(line)

    def _advance(self, data: bytes, *, dropping: bool) -> None:
        place = self._place
        before = data[-FINGERPRINT_BYTES:]
        if len(before) < FINGERPRINT_BYTES:
            before = (place.before + before)[-FINGERPRINT_BYTES:]
        self._place = FilePlace(place.inode, place.offset + len(data), before, dropping, place.skipping)

    def _is_the_same(self) -> bool:
        """What stands before the place is what stood there when it was read."""
        before, partial = self._place.before, self._partial
        start = self._place.offset - len(before)
        return os.pread(self._fd, len(before) + len(partial), start) == before + partial

    def _succeed(self) -> bool:
        """At the end of a file that is no longer the one at the path: go over to its successor, once that has begun."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        if now.st_ino == self._place.inode or now.st_size == 0 or not stat.S_ISREG(now.st_mode):
            return False
        if self._partial:
            self._unread = [self._partial]  # nothing more will come to it
            self._partial = b""
            return True
        os.close(self._fd)
        self._fd = -1
        self._begin(FilePlace())
        return self._open_file()

    def _open_file(self) -> bool:
        """Open the file at the path, or the renamed one where an earlier run stopped. False: there is none."""
        path = self._renamed() or self._path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._trouble = f"{self._path}: no such file; it is read as soon as there is one"
            if self._place.skipping:  # a file that comes later is new from its first line
                self._place = FilePlace()
            return False
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file")
        self._trouble = ""
        if self._place.inode != found.st_ino or not self._is_the_same():
            self._begin(FilePlace(inode=found.st_ino, skipping=self._place.skipping))
        self._watch_file(path)
        return True

    def _renamed(self) -> Path | None:
        """The file where an earlier run stopped, if it stands in the same folder under another name by now."""
        if not self._place.before:
            return None
        try:
            if self._path.exists() and self._path.stat().st_ino == self._place.inode:
                return None
            with os.scandir(self._path.parent) as entries:
                same = [e.path for e in entries if e.inode() == self._place.inode and e.is_file(follow_symlinks=False)]
            for path in same:
                with Path(path).open("rb") as file:
                    if os.pread(file.fileno(), *self._fingerprint_at()) == self._place.before:
                        return Path(path)
        except OSError:
            pass  # then there is none that can be read
        return None

    def _fingerprint_at(self) -> tuple[int, int]:
        return len(self._place.before), self._place.offset - len(self._place.before)

    def _begin(self, place: FilePlace) -> None:
        self._place = place
        self._partial = b""
        self._unread = []
        self._reader.forget()

    def _watch(self) -> None:
        """Watch the folder, or while it is missing the nearest one above it; before looking, so nothing slips by."""
        if self._inotify is None:
            try:
                self._inotify = INotify(nonblocking=True)
            except OSError as error:
                why = f"cannot be followed: {error.strerror}"
                if error.errno == errno.EMFILE:
                    why += " (fs.inotify.max_user_instances is used up)"
                raise OSError(error.errno, why) from None
        else:
            self._swallow_events()
        folder = self._path.parent
        missing: Path | None = None
        while True:
            try:
                self._inotify.add_watch(folder, _FOLDER_EVENTS)  # of one already watched: changes nothing
            except FileNotFoundError:
                missing, folder = folder, folder.parent
                continue
            if missing is None or not missing.exists():
                return
            missing, folder = None, self._path.parent  # it came just before the watch

    def _watch_file(self, path: Path) -> None:
        if self._inotify is None:
            return
        if self._file_watch >= 0:
            with contextlib.suppress(OSError):  # gone with its file
                self._inotify.rm_watch(self._file_watch)
        self._file_watch = self._inotify.add_watch(path, _FILE_EVENTS)

    def _swallow_events(self) -> None:
        """What has happened is seen by looking at the files."""
        while self._inotify is not None:
            try:
                os.read(self._inotify.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                return

    def arm(self) -> None:
        if self._inotify is None or self._trouble:
            self._backoff.call(self._loop, self._wake)
        if self._inotify is not None and not self._armed:
            self._loop.add_reader(self._inotify.fileno(), self._fire)
            self._armed = True

    def look_again(self) -> None:
        """Nothing to do: each ``read()`` looks at the file itself."""

    def place(self) -> bytes:
        return msgspec.json.encode(self._place)

    def health(self) -> str:
        return self._trouble

    def close(self) -> None:
        self._backoff.cancel()
        self._disarm()
        self._close_files()

    def _fire(self) -> None:
        self._disarm()
        self._wake()

    def _disarm(self) -> None:
        if self._armed and self._inotify is not None:
            self._loop.remove_reader(self._inotify.fileno())
        self._armed = False

    def _give_up(self, error: OSError) -> None:
        self._trouble = f"{self._path}: {error.strerror or error}"
        _log.warning("%s; tried again in %.1f s", self._trouble, self._backoff.delay_s)
        self._disarm()
        self._close_files()
        self._partial = b""
        self._unread = []

    def _close_files(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
            self._file_watch = -1

"""Follows a plain file of kernel messages, without polling, across rotation, truncation and absence.

No message is read twice. The file is read when inotify reports a change of the file or its folder. A line counts only
with its newline. The place consists of the file's inode, the offset, and the bytes just before it: another file may
reuse an inode, and a truncated file may have grown past the offset again.

Rotation: a renamed file is read until its successor has content, because a logger writes to the old file until it is
signalled. After a restart the old file is searched by its inode in the same folder. A successor that was also rotated,
or compressed, in the meantime is not found.
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
LINE_BYTES = 64 * 1024  # the rest of a longer line is dropped
FINGERPRINT_BYTES = 64
CONTEXT_BYTES = 16 * 1024  # a record of the kernel has at most 8 KiB
_FILE_EVENTS = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF
_FOLDER_EVENTS = flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVED_FROM | flags.DELETE_SELF | flags.MOVE_SELF


class FilePlace(msgspec.Struct, frozen=True):
    """``offset``: of the first line not yet processed, in the file ``inode``; ``before``: the bytes just before it.

    ``dropping``: the rest of an overlong line follows and is dropped. ``inode`` 0: no file yet.
    ``skipping``: the content of the file when it is first opened is skipped (``start: now``).
    """

    inode: int = 0
    offset: int = 0
    before: bytes = b""
    dropping: bool = False
    skipping: bool = False


class FileSource:
    """A :class:`~muster_checks.dmesg.sources.source.LogSource` on a plain file.

    ``complete``: a saved log that no longer grows, so its last line counts even without a newline.
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
            _log.info("%s was truncated: reading starts from its beginning", self._path)
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
                self._reader.live = not self._complete
                return
            lines, self._unread = self._unread[: LINES_PER_TURN - taken], self._unread[LINES_PER_TURN - taken :]
            taken += max(1, len(lines))
            for raw in lines:
                self._take(raw, batch)
        batch.more = True

    def _end_skipping(self) -> None:
        """The content at the start has been skipped. If it ends within a line, the rest of that line is dropped too."""
        self._advance(self._partial, dropping=bool(self._partial) or self._place.dropping)
        self._partial = b""
        self._show_context()
        self._place = msgspec.structs.replace(self._place, skipping=False)

    def _read_chunk(self, batch: Batch) -> bool:
        """Read the next chunk into ``_unread`` and ``_partial``. Returns False at the end of the file."""
        data = os.pread(self._fd, CHUNK_BYTES, self._place.offset + len(self._partial))
        if not data:
            return False
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        self._unread = lines
        if not lines and len(self._partial) > LINE_BYTES:
            # the beginning of an overlong line is its text; the rest, up to its newline, is dropped
            self._take(self._partial, batch, newline=b"", more=True)
            self._partial = b""
        return True

    def _take(self, raw: bytes, batch: Batch, *, newline: bytes = b"\n", more: bool = False) -> None:
        """Process one line. ``more``: drop the rest of it, up to its newline."""
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
        """Whether the bytes before the place are still those that were read."""
        before, partial = self._place.before, self._partial
        start = self._place.offset - len(before)
        return os.pread(self._fd, len(before) + len(partial), start) == before + partial

    def _succeed(self) -> bool:
        """At the end of a file that was rotated: switch to its successor, as soon as that has content."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        if now.st_ino == self._place.inode or now.st_size == 0 or not stat.S_ISREG(now.st_mode):
            return False
        if self._partial:
            self._unread = [self._partial]  # it will not be completed
            self._partial = b""
            return True
        os.close(self._fd)
        self._fd = -1
        self._begin(FilePlace())
        return self._open_file()

    def _open_file(self) -> bool:
        """Open the file at the path, or the renamed one in which an earlier run stopped. Returns False if there is
        none."""
        path = self._renamed() or self._path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._trouble = f"{self._path}: no such file; it will be read when it exists"
            if self._place.skipping:  # a file created later is new from its first line
                self._place = FilePlace()
            return False
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        self._trouble = ""
        self._reader.live = False  # what is already there may be old
        if self._place.inode != found.st_ino or not self._is_the_same():
            self._begin(FilePlace(inode=found.st_ino, skipping=self._place.skipping))
        elif self._place.offset:
            self._show_context()
        self._watch_file(path)
        return True

    def _show_context(self) -> None:
        """Show the reader the lines just before the place: the next line may continue one of them."""
        start = max(0, self._place.offset - CONTEXT_BYTES)
        lines = os.pread(self._fd, self._place.offset - start, start).split(b"\n")
        malformed = self._reader.malformed
        for raw in lines[1 if start else 0 : -1]:
            self._reader.take(raw)
        self._reader.malformed = malformed

    def _renamed(self) -> Path | None:
        """The file in which an earlier run stopped, if it has been renamed within its folder."""
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
            pass  # no such file can be read
        return None

    def _fingerprint_at(self) -> tuple[int, int]:
        return len(self._place.before), self._place.offset - len(self._place.before)

    def _begin(self, place: FilePlace) -> None:
        self._place = place
        self._partial = b""
        self._unread = []
        self._reader.forget()

    def _watch(self) -> None:
        """Watch the folder or, while it is missing, its nearest existing parent. Runs before each look at the file, so
        that no change is missed."""
        if self._inotify is None:
            try:
                self._inotify = INotify(nonblocking=True)
            except OSError as error:
                why = f"cannot be followed: {error.strerror}"
                if error.errno == errno.EMFILE:
                    why += " (the limit fs.inotify.max_user_instances is reached; raise it)"
                raise OSError(error.errno, why) from None
        else:
            self._swallow_events()
        folder = self._path.parent
        missing: Path | None = None
        while True:
            try:
                self._inotify.add_watch(folder, _FOLDER_EVENTS)  # no effect if it is already watched
            except FileNotFoundError:
                missing, folder = folder, folder.parent
                continue
            if missing is None or not missing.exists():
                return
            missing, folder = None, self._path.parent  # it was created just before the watch

    def _watch_file(self, path: Path) -> None:
        if self._inotify is None:
            return
        if self._file_watch >= 0:
            with contextlib.suppress(OSError):  # the watch disappeared with its file
                self._inotify.rm_watch(self._file_watch)
        self._file_watch = self._inotify.add_watch(path, _FILE_EVENTS)

    def _swallow_events(self) -> None:
        """Discard the events: the files themselves show what has changed."""
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
        """No-op: each ``read()`` looks at the file itself."""

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
        _log.warning("%s; retrying in %.1f s", self._trouble, self._backoff.delay_s)
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

"""The kubelet's log folder, as this process reads it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster_checks.base.declaration import LogOpener
from muster_checks.containerlog.log_opener import open_beneath


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

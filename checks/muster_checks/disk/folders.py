"""Folders that the node needs, and where they are if symbolic links lead to them."""

import errno
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from muster_checks.disk import NODE_PATHS

LINKS_LIMIT = 40  # as in the kernel (MAXSYMLINKS, include/linux/namei.h)


def split_paths(paths: str) -> list[str]:
    return [path.strip() for path in paths.split(",") if path.strip()]


@lru_cache(maxsize=8)
def node_links(root: Path) -> Mapping[str, str]:
    """Where the folders of NODE_PATHS are on the node with its files under ``root``.

    Read once, because a disk that hangs must not hang a check; and no others, because a query may name any folder.
    """
    return {path: follow_links(root, path) for path in split_paths(NODE_PATHS)}


def follow_links(root: Path, path: str) -> str:
    """``path`` with all symbolic links followed as by a process whose root is ``root``.

    A part that cannot be looked at stays as it is. May wait for the disk that holds the path.
    """
    # the second root is for an agent that sees the node's processes, but not its root
    return _follow(root, path) or _follow(root / "proc/1/root", path) or path


def _follow(root: Path, path: str) -> str | None:
    """None if the first part of ``path`` cannot be looked at, or the links have no end."""
    done, parts, links = PurePosixPath("/"), _parts(path), 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            done = done.parent
            continue
        try:
            target = str((root / str(done / part).lstrip("/")).readlink())
        except ValueError:  # not a file's name
            return None
        except OSError as error:
            # EINVAL: exists, and is not a link
            if error.errno != errno.EINVAL and done == PurePosixPath("/") and not links:
                return None
            done /= part
            continue
        links += 1
        if links > LINKS_LIMIT:
            return None
        if target.startswith("/"):
            done = PurePosixPath("/")
        parts = _parts(target) + parts
    return str(done)


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if not part.startswith("/")]

"""Opens files and folders below the kubelet's log folder, and nothing else.

A pod with a writable hostPath can put symbolic links, FIFOs and devices there. So each component of a path is opened
without following links, its type is examined before it is opened for reading, and only folders and regular files are.
Opening a FIFO would wait for a writer, and opening a device may act on it.

Run as a program, by its path, it is the helper of an agent without privileges (muster_agent.process.pod_logs): it
answers requests on a socket. It imports little, because it is there on every node: 4 MB of memory.
"""

import errno
import os
import socket
import stat
import sys
from collections.abc import Sequence

NAME_BYTES = 255  # Linux's limit
DEPTH = 3  # NAMESPACE_POD_UID/CONTAINER/FILE
REQUEST_BYTES = 1024  # three names
ANSWER_BYTES = 2048
OPENED, FAILED, NO_LOG = b"o", b"f", b"n"  # first byte of an answer; after the others: ERRNO:TEXT
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotALog(OSError):
    """There is something else than a folder or a regular file, which is not opened."""


def open_beneath(folder: str | os.PathLike[str], parts: Sequence[str]) -> int:
    """A descriptor for reading the folder or regular file ``parts`` below ``folder``.

    ``folder`` itself may be reached through links: the administrator chose it. Raises OSError, NotALog.
    """
    if len(parts) > DEPTH or not all(map(_is_name, parts)):
        raise NotALog(errno.EINVAL, "is not the path of a container's log", "/".join(parts))
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
        raise NotALog(errno.ENOTDIR, "is below a link or a file", "/".join(parts)) from None
    finally:
        os.close(current)


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and not set(part) & {"/", "\0"} and len(os.fsencode(part)) <= NAME_BYTES


def serve(folder: str, connection: socket.socket) -> None:
    """Answer requests, paths below ``folder`` (``.``: itself), until the other end is closed."""
    while request := connection.recv(REQUEST_BYTES):
        path = os.fsdecode(request)
        try:
            handle = open_beneath(folder, path.split("/") if path != "." else ())
        except OSError as error:
            kind = NO_LOG if isinstance(error, NotALog) else FAILED
            connection.send(kind + f"{error.errno}:{error.strerror}".encode()[: ANSWER_BYTES - 1])
            continue
        try:
            socket.send_fds(connection, [OPENED], [handle])
        finally:
            os.close(handle)


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

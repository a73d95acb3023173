"""Which dcgmi to run: the one on PATH, else the node's own.

NVIDIA's package of dcgmi may not be part of an image, so an agent in a container uses what is installed on the node.
Its libraries fit the node's C library, not the container's: the node's own loader runs it with the node's own
libraries (ld.so(8), --library-path). dcgmi is only a client of the host engine and needs no other file.
"""

import platform
from pathlib import Path

from muster_checks.base.declaration import NodeView

# where NVIDIA's packages for Debian, Ubuntu, RHEL and SLES install it
PROGRAM = "/usr/bin/dcgmi"
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_LIBRARIES = ("/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu", "/usr/lib64", "/lib64")


def find_dcgmi(node: NodeView, machine: str = platform.machine()) -> tuple[str, ...] | None:
    """The beginning of its command line; None if it is not installed. machine: as in uname -m."""
    if node.commands.which("dcgmi") is not None:
        return ("dcgmi",)
    program, loader = node.path(PROGRAM), node.path(_LOADERS.get(machine, "/nonexistent"))
    if node.root == Path("/") or not program.is_file() or not loader.is_file():
        return None
    folders = (node.path(folder.format(machine=machine)) for folder in _LIBRARIES)
    return (str(loader), "--library-path", ":".join(map(str, folders)), str(program))

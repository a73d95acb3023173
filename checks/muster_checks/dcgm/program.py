"""Which dcgmi to run: the one on PATH, else the node's own.

NVIDIA's package of dcgmi may not be part of an image, so an agent in a container uses what is installed on the node.
Its libraries fit the node's C library, not the container's: the node's own loader runs it with the node's own
libraries (ld.so(8), --library-path). dcgmi is only a client of the host engine and needs no other file. Symbolic links
are followed on the node, not in the container: on Debian and Ubuntu the loader is an absolute link.
"""

import platform
from pathlib import Path

from muster_checks.base.declaration import NodeView
from muster_checks.disk.folders import follow_links

# where NVIDIA's packages for Debian, Ubuntu, RHEL and SLES install it
PROGRAM = "/usr/bin/dcgmi"
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_LIBRARIES = ("/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu", "/usr/lib64", "/lib64")


def find_dcgmi(node: NodeView, machine: str = platform.machine()) -> tuple[str, ...] | None:
    """The beginning of its command line; None if it is not installed. machine: as in uname -m."""
    if node.commands.which("dcgmi") is not None:
        return ("dcgmi",)
    program, loader = _on_node(node, PROGRAM), _on_node(node, _LOADERS.get(machine, "/nonexistent"))
    if node.root == Path("/") or not program.is_file() or not loader.is_file():
        return None
    folders = dict.fromkeys(str(_on_node(node, folder.format(machine=machine))) for folder in _LIBRARIES)
    return (str(loader), "--library-path", ":".join(folders), str(program))


def _on_node(node: NodeView, path: str) -> Path:
    return node.path(follow_links(node.root, path))

"""What a real node has: one root file system, as the image that jobs name, and with this checkout's `muster` in it."""

from collections.abc import Callable
from pathlib import Path

from muster_testbed.containers import PAUSE
from muster_testbed.images import Image, muster_layer, root_layer

ROOT = Path(__file__).parents[2]
MPI = "localhost/muster-mpi:1"  # OpenMPI, Python and kubectl
MUSTER = "localhost/muster:1"  # the same with Muster
_PACKAGES = ("operator/muster_operator", "kube/muster_kube", "cli/muster_cli")


def images(progress: Callable[[str], None]) -> list[Image]:
    """Raises packages.NoPackages."""
    root = root_layer(progress)
    return [
        Image(PAUSE, (root,), ("/usr/bin/sleep", "infinity")),
        Image(MPI, (root,)),
        Image(MUSTER, (root, muster_layer([ROOT / each for each in _PACKAGES]))),
    ]

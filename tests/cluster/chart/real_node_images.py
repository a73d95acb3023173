"""What a real node has: one root file system, as the image that jobs name, and with this checkout's `muster` in it."""

from collections.abc import Callable
from pathlib import Path

from muster_sandbox.image.layers import Image, make_layer, muster_layer, root_layer
from muster_sandbox.realnode.containers import PAUSE

ROOT = Path(__file__).parents[3]
MPI = "localhost/muster-mpi:1"  # OpenMPI, Python and kubectl
MUSTER = "localhost/muster:1"  # the same with Muster
CURL = "localhost/curl:1"  # with what curl does of it
_CURL = "usr/local/bin/curl"
_PACKAGES = ("operator/muster_operator", "kube/muster_kube", "checks/muster_checks", "cli/muster_cli")


def images(progress: Callable[[str], None]) -> list[Image]:
    """Raises packages.NoPackages."""
    root = root_layer(progress)
    return [
        Image(PAUSE, (root,), ("/usr/bin/sleep", "infinity")),
        Image(MPI, (root,)),
        Image(CURL, (root, make_layer({_CURL: (Path(__file__).parent / "curl_in_a_pod.py").read_bytes()}, [_CURL]))),
        Image(MUSTER, (root, muster_layer([ROOT / each for each in _PACKAGES]))),
    ]

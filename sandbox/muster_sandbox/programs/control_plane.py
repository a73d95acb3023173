"""Finds the control plane's programs, and builds missing ones."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_sandbox.programs.binaries import (
    BUILD_NAME,
    KUBELET,
    KUBELET_BUILD_NAME,
    PROGRAMS,
    cache_directory,
    find_binaries,
    find_kubelet,
)
from muster_sandbox.programs.debian import build


def find_or_build(
    progress: Callable[[str], None], environ: Mapping[str, str] = os.environ, *, with_kubelet: bool = False
) -> Path:
    """As :func:`find`, but builds missing programs (about five minutes, once for each user).

    ``progress`` receives one line of text for each step. ``with_kubelet``: build a kubelet too.
    Raises NoControlPlane.
    """
    wanted: dict[str, Sequence[str]] = {}
    found = find_binaries(environ)
    if found is None:
        wanted[BUILD_NAME] = PROGRAMS
    if with_kubelet and find_kubelet(environ) is None:
        wanted[KUBELET_BUILD_NAME] = KUBELET
    if wanted:
        build(cache_directory(environ), wanted, progress)
    return found or cache_directory(environ) / BUILD_NAME

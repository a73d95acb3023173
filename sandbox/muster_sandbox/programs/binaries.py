"""Where the control plane's programs come from: named by the user, cached, or built once from Debian's own packages."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
BUILD_NAME = "debian12-kubernetes-1.20.2"
KUBELET = ("kubelet",)
KUBELET_BUILD_NAME = "debian12-kubelet-1.20.2"  # a folder of its own: who has the control plane keeps that


class NoControlPlane(RuntimeError):
    """There is no control plane to start, and why; the message says what to do."""


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/muster/control-plane``, by default below ``~/.cache``."""
    # The base directory specification: a relative value is to be ignored
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "muster" / "control-plane"


def is_complete(directory: Path, programs: Sequence[str] = PROGRAMS) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in programs)


def find_binaries(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the four programs: ``$KUBEBUILDER_ASSETS``, else the cache; None where they are to be built.

    Raises NoControlPlane where ``$KUBEBUILDER_ASSETS`` is set and lacks one: a silent fall-back would test another
    version than the one that was asked for.
    """
    named = environ.get("KUBEBUILDER_ASSETS", "")
    if named:
        directory = Path(named)
        missing = [program for program in PROGRAMS if not os.access(directory / program, os.X_OK)]
        if missing:
            raise NoControlPlane(
                f"KUBEBUILDER_ASSETS={named}: {', '.join(missing)} missing or not executable; expected "
                f"{', '.join(PROGRAMS)} (envtest's archives hold the first two only: put the others of the same "
                "version beside them, or unset the variable to have them built)"
            )
        return directory.resolve()
    cached = cache_directory(environ) / BUILD_NAME
    return cached if is_complete(cached) else None


def find_kubelet(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The kubelet of the same version: in ``$KUBEBUILDER_ASSETS``, else in the cache; None where it is to be built.

    Raises NoControlPlane where ``$KUBEBUILDER_ASSETS`` is set and has none.
    """
    named = environ.get("KUBEBUILDER_ASSETS", "")
    if named:
        if not is_complete(Path(named), KUBELET):
            raise NoControlPlane(f"KUBEBUILDER_ASSETS={named}: no kubelet in it; a real node needs one of that version")
        return Path(named).resolve() / "kubelet"
    cached = cache_directory(environ) / KUBELET_BUILD_NAME
    return cached / "kubelet" if is_complete(cached, KUBELET) else None

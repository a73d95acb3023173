"""Finds the control plane's programs: from the user's setting, or from the cache."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
BUILD_NAME = "debian12-kubernetes-1.20.2"
KUBELET = ("kubelet",)
KUBELET_BUILD_NAME = "debian12-kubelet-1.20.2"  # separate, so that an existing control plane is not rebuilt


class NoControlPlane(RuntimeError):
    """No control plane can be started; the message says why and what to do."""


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/muster/control-plane``, by default below ``~/.cache``."""
    # the base directory specification says to ignore a relative value
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "muster" / "control-plane"


def is_complete(directory: Path, programs: Sequence[str] = PROGRAMS) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in programs)


def find_binaries(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the four programs: ``$KUBEBUILDER_ASSETS``, else the cache; None if they must be built.

    Raises NoControlPlane if ``$KUBEBUILDER_ASSETS`` is set and lacks one: a silent fallback would test a different
    version than the requested one.
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
    """The kubelet of the same version: in ``$KUBEBUILDER_ASSETS``, else in the cache; None if it must be built.

    Raises NoControlPlane if ``$KUBEBUILDER_ASSETS`` is set and has none.
    """
    named = environ.get("KUBEBUILDER_ASSETS", "")
    if named:
        if not is_complete(Path(named), KUBELET):
            raise NoControlPlane(f"KUBEBUILDER_ASSETS={named}: no kubelet in it: a real node needs one of that version")
        return Path(named).resolve() / "kubelet"
    cached = cache_directory(environ) / KUBELET_BUILD_NAME
    return cached / "kubelet" if is_complete(cached, KUBELET) else None

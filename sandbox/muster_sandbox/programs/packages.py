"""Unpacks trees of files from Debian packages into the user's cache: programs for a real node, and a root file system.

Nothing is installed: the packages are unpacked, and this module does what their installation scripts would do, where it
is needed. It needs no root, a minute, and 250 MB in the user's cache.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from muster_sandbox.programs.apt import apt_get, build_lock, debian_mirrors, remove_tree
from muster_sandbox.programs.binaries import cache_directory
from muster_sandbox.programs.requirements import AGAIN_AFTER_S, install_command, missing_packages

RECIPE_VERSION = 2  # increase it when the handling of unpacked files changes, so that older caches are not used
STEP_LIMIT_S = 900
_PYTHON_PATH = "usr/lib/python3/dist-packages"
# of what Debian 12's own Python runs, wherever we run ourselves
WHEELS = (
    *("--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311"),
    *("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64"),
)


class NoPackages(RuntimeError):
    """A tree could not be created; the message says why."""


@dataclass(frozen=True)
class PackageTree:
    """versions: packages to unpack, each with what its version begins with ("": any), as the test bed was proven with.
    whole: with all that they depend on, as a root file system. python: packages from PyPI in it, as here installed.
    without: packages that others depend on for their installation only. recipe: rises with every change of what is done
    to the files of this tree."""

    name: str
    versions: Mapping[str, str]
    whole: bool = False
    python: tuple[str, ...] = field(default=())
    without: tuple[str, ...] = field(default=())
    recipe: int = 0

    @property
    def digest(self) -> str:
        parts: list[object] = [RECIPE_VERSION, sorted(self.versions.items()), self.whole, _pins(self.python)]
        parts += [self.recipe] if self.recipe else []
        text = repr(tuple([*parts, self.without] if self.without else parts))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# containerd loads no libraries of its own, runc one
RUNTIME = PackageTree(
    "runtime", {"containerd": "1.6.", "runc": "1.1.", "containernetworking-plugins": "1.1.", "libseccomp2": ""}
)
ROOT_FILES = PackageTree(
    "root",
    {
        "openmpi-bin": "4.1.4",
        "python3-mpi4py": "3.1.4",
        "python3-minimal": "3.11",
        "kubernetes-client": "1.20.5+really1.20.2",
        "coreutils": "",
        "bash": "",
        "dash": "",
        "iproute2": "",
    },
    whole=True,
    python=("httpx2", "httpcore2", "msgspec", "PyYAML", "typing-extensions"),
)


def tree_folder(tree: PackageTree, environ: Mapping[str, str] = os.environ) -> Path:
    return cache_directory(environ).parent / "node" / f"{tree.name}-{tree.digest}"


def unpack_tree(
    tree: PackageTree,
    progress: Callable[[str], None],
    *,
    finish: Callable[[Path, Path], None] | None = None,
    environ: Mapping[str, str] = os.environ,
    again_after_s: Sequence[float] = AGAIN_AFTER_S,
) -> Path:
    """The folder of ``tree``, from the cache, or fetched and unpacked.

    ``finish(root, result)`` creates the result from the unpacked files; by default it is the files. Raises NoPackages.
    """

    def make(work: Path) -> Path:
        debs = fetch_packages(tree, work, progress, again_after_s)
        progress(f"[{tree.name}] unpacking {len(debs)} packages")
        root = work / "root"
        unpack(debs, root, whole=tree.whole)
        if tree.python:
            progress(f"[{tree.name}] fetching {', '.join(tree.python)} from PyPI")
            _add_python(tree.python, root / _PYTHON_PATH, work)
        if finish is None:
            return root
        result = work / "result"
        result.mkdir()
        finish(root, result)
        return result

    return make_once(tree.name, tree.digest, make, progress, environ)


def make_once(
    name: str,
    digest: str,
    make: Callable[[Path], Path],
    progress: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """The folder ``NAME-DIGEST`` in the cache. If it does not exist, ``make`` creates it.

    Deletes folders of the same name with another digest. Raises NoPackages, and exceptions of ``make``.
    """
    cache = cache_directory(environ).parent / "node"
    target = cache / f"{name}-{digest}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with build_lock(cache / "lock", progress):
        if target.is_dir():
            return target
        for stale in cache.glob("build-*"):  # left by a killed process: we hold the lock
            remove_tree(stale)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
        try:
            result = make(work)
            for old in cache.glob(f"{name}-*"):
                remove_tree(old)
            result.rename(target)
        finally:
            remove_tree(work)
    return target


def fetch_packages(
    tree: PackageTree, work: Path, progress: Callable[[str], None], again_after_s: Sequence[float] = AGAIN_AFTER_S
) -> list[Path]:
    """Fetch the packages of ``tree`` into ``work``. Raises NoPackages."""
    if missing := missing_packages():
        raise NoPackages(f"unpacking Debian's packages needs {', '.join(missing)}: {install_command(missing)}")
    mirrors = debian_mirrors()
    if not mirrors:
        raise NoPackages("apt has no Debian source (see sources.list(5))")
    problem = ""
    for pause_s in (0.0, *again_after_s):
        if problem:
            progress(f"[{tree.name}] will retry in {pause_s:.0f} s: {problem.splitlines()[0]}")
            time.sleep(pause_s)
        for mirror in mirrors:
            try:
                debs = _fetched_from(mirror, tree, work, progress)
                return [each for each in debs if each.name.partition("_")[0] not in tree.without]
            except NoPackages as error:
                problem = str(error)
    raise NoPackages(problem)


def _fetched_from(mirror: str, tree: PackageTree, work: Path, progress: Callable[[str], None]) -> list[Path]:
    apt = apt_get(work / "apt", mirror)
    progress(f"[{tree.name}] fetching {', '.join(tree.versions)} from {mirror}")
    run_step([*apt, "update"], work)
    archives = work / "apt/cache/archives"
    if tree.whole:
        # nothing counts as installed, so all that it needs comes along
        options = ["-o", "APT::Install-Recommends=false", "-o", "Debug::NoLocking=true", "--yes", "--download-only"]
        run_step([*apt, *options, "install", *tree.versions], work)
    else:
        run_step([*apt, "download", *tree.versions], archives)
    debs = sorted(archives.glob("*.deb"))
    for package, expected in tree.versions.items():
        found = [each.name for each in debs if each.name.startswith(f"{package}_")]
        if len(found) != 1 or not found[0].split("_")[1].replace("%3a", ":").startswith(expected):
            raise NoPackages(f"{mirror}: {package} is {found}, expected version {expected}…")
    return debs


def unpack(debs: Sequence[Path], root: Path, *, whole: bool) -> None:
    """Unpack into ``root``, which must not exist. Raises NoPackages."""
    root.mkdir()
    if whole:
        # Debian 12 is one /usr, which base-files' installation would see to
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        opened = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
        with opened:
            # the links above stay, whatever the archive holds at their place
            tar = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--directory", str(root)]
            done = subprocess.run(tar, stdin=opened.stdout, capture_output=True, check=False, timeout=STEP_LIMIT_S)
        if done.returncode or opened.returncode:
            raise NoPackages(f"cannot unpack {deb.name}: {done.stderr.decode(errors='replace')[-500:]}")
    if whole:
        _record(debs, root / "var/lib/dpkg/status")


def _record(debs: Sequence[Path], status: Path) -> None:
    """What is in it, where dpkg keeps that and scanners of images look for it; with hashes, as in apt's lists."""
    status.parent.mkdir(parents=True, exist_ok=True)
    stanzas = []
    for deb in debs:
        command = ["dpkg-deb", "--field", str(deb)]
        fields = subprocess.run(command, capture_output=True, text=True, check=True, timeout=STEP_LIMIT_S).stdout
        with deb.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stanzas.append(f"{fields.strip()}\nSHA256: {digest}\nStatus: install ok installed\n")
    status.write_text("\n".join(stanzas))


def _add_python(packages: Sequence[str], folder: Path, work: Path) -> None:
    constraints = work / "constraints.txt"
    constraints.write_text(
        "".join(
            f"{each.name}=={each.version}\n" for each in importlib.metadata.distributions() if each.name != "passmuster"
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run_step([*pip, *WHEELS, "--target", str(folder), "--constraint", str(constraints), *packages], work)


def _pins(packages: Sequence[str]) -> list[str]:
    return [f"{package}=={importlib.metadata.version(package)}" for package in packages]


def run_step(command: Sequence[str], cwd: Path, environ: Mapping[str, str] = MappingProxyType({})) -> None:
    """environ: more of the environment. Raises NoPackages, with the end of what ``command`` printed."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=STEP_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPackages(f"{Path(command[0]).name}: {error}") from error
    if done.returncode:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-10:])
        raise NoPackages(f"{Path(command[0]).name} ended with {done.returncode}:\n{tail}")

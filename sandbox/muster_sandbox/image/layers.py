"""Builds images without an engine, from a cached root file system layer and a layer with this checkout's code.

The archives have the format of ``docker save``, which ``ctr images import`` reads.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from muster_sandbox.programs.packages import ROOT_FILES, NoPackages, unpack_tree

LAYER = "layer.tar"
PATH = "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"
PACKAGES = "usr/local/lib/python3.11/dist-packages"  # before Debian's own in Python's search path
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "usr/share/bug")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# libraries for hardware that is not here are left out of the packages that we take, and it would say so each time
_FILES["etc/openmpi/openmpi-mca-params.conf"] = "mca_base_component_show_load_errors = 0\n"
# links that Debian's alternatives make at installation
_LINKS = {"usr/bin/mpirun": "mpirun.openmpi", "usr/bin/mpiexec": "mpiexec.openmpi", "usr/bin/sh": "dash"}


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar, as bytes or as a file; digest: sha256 of it, in hexadecimal."""

    content: bytes | Path
    digest: str


@dataclass(frozen=True)
class Image:
    tag: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] = ()


def root_layer(progress: Callable[[str], None]) -> Layer:
    """Debian with OpenMPI, Python and kubectl; from the user's cache, else made. Raises NoPackages."""
    folder = unpack_tree(ROOT_FILES, progress, finish=_finish)
    return Layer(folder / LAYER, (folder / "digest").read_text())


def _finish(root: Path, result: Path) -> None:
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("etc", "proc", "sys", "dev", "run", "tmp", "root", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    for name, to in _LINKS.items():
        if not (root / name).is_symlink():
            (root / name).symlink_to(to)
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin")
    if ldconfig is None:
        raise NoPackages("ldconfig is missing: install libc-bin")
    subprocess.run([ldconfig, "-r", str(root)], check=True, timeout=120)
    layer = result / LAYER
    with layer.open("wb") as file:
        pack(root, file)
    (result / "digest").write_text(digest_of(layer))


def pack(root: Path, file: IO[bytes]) -> None:
    """The same bytes for the same files, regardless of their owner."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as layer:
        for folder, directories, files in os.walk(root):
            directories.sort()
            for name in sorted(directories + files):
                path = Path(folder, name)
                info = layer.gettarinfo(str(path), str(path.relative_to(root)))
                info.uid = info.gid = 0
                info.mtime = 0
                info.uname = info.gname = ""
                if info.isreg():
                    with path.open("rb") as content:
                        layer.addfile(info, content)
                else:
                    layer.addfile(info)


def digest_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def make_layer(files: Mapping[str, bytes], programs: Sequence[str] = ()) -> Layer:
    """A layer with ``files`` by path; ``programs`` are those that can be executed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as layer:
        for path in sorted(files):
            info = tarfile.TarInfo(path)
            info.size = len(files[path])
            info.mode = 0o755 if path in programs else 0o644
            layer.addfile(info, io.BytesIO(files[path]))
    content = out.getvalue()
    return Layer(content, hashlib.sha256(content).hexdigest())


def muster_layer(packages: Sequence[Path]) -> Layer:
    """The ``muster`` command with these Python packages (folders)."""
    files = {
        f"{PACKAGES}/{package.name}/{path.relative_to(package)}": path.read_bytes()
        for package in packages
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    program = "usr/local/bin/muster"
    files[program] = b"#!/usr/bin/python3\nimport sys\nfrom muster_cli.__main__ import main\nsys.exit(main())\n"
    return make_layer(files, [program])


def write_archive(images: Sequence[Image], out: IO[bytes]) -> None:
    """All of them in one archive, each layer in it once; ``out`` may be a pipe."""
    written: set[str] = set()
    listed = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for image in images:
            for layer in image.layers:
                if layer.digest not in written:
                    written.add(layer.digest)
                    _add(archive, f"{layer.digest}/{LAYER}", layer.content)
            config = json.dumps(
                {
                    "architecture": "amd64",
                    "os": "linux",
                    "config": {"Entrypoint": list(image.entrypoint), "Env": [f"PATH={PATH}"]},
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in image.layers]},
                }
            ).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, name, config)
            layers = [f"{layer.digest}/{LAYER}" for layer in image.layers]
            listed.append({"Config": name, "RepoTags": [image.tag], "Layers": layers})
        _add(archive, "manifest.json", json.dumps(listed).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    if isinstance(content, Path):
        info.size = content.stat().st_size
        with content.open("rb") as file:
            archive.addfile(info, file)
    else:
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))

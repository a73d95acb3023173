"""Builds Muster's image without an engine, with the same content as from release/Containerfile.

It has three layers: Debian, Python packages from PyPI, Muster. The first two are cached for the user until their
package lists change. ``python -m muster_sandbox.image.product FILE [NAME:TAG…]`` writes the archive.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from configparser import ConfigParser
from pathlib import Path

from muster_sandbox.image import oci
from muster_sandbox.image.layers import PACKAGES, PATH, Layer, digest_of, make_layer, pack
from muster_sandbox.image.requirements import name_of
from muster_sandbox.programs.packages import WHEELS, NoPackages, PackageTree, make_once, run_step, unpack_tree

ROOT = Path(__file__).resolve().parents[3]
PACKAGE_LIST = Path("release/debian-packages")
ENTRYPOINT = ("muster",)
USER = "65534:65534"
ENVIRONMENT = {"PATH": PATH, "PYTHONUNBUFFERED": "1"}
LABELS = {"org.opencontainers.image.title": "muster", "org.opencontainers.image.licenses": "Apache-2.0"}
# of debian:bookworm-slim what is used
_SLIM = ("base-files", "coreutils", "dash", "libc-bin")
# needed by installation scripts, or by programs that nothing here starts
WITHOUT = (
    *("adduser", "cdebconf", "debconf", "debianutils", "dpkg", "gawk", "init-system-helpers", "install-info"),
    *("libaudit-common", "libaudit1", "libcap2-bin", "libdb5.3", "libfile-find-rule-perl", "libgdbm-compat4"),
    *("libgdbm6", "libnumber-compare-perl", "libpam-modules", "libpam-modules-bin", "libpam0g", "libperl5.36"),
    *("libsemanage-common", "libsemanage2", "libsepol2", "libtext-glob-perl", "lsb-base", "mailcap", "mawk"),
    *("media-types", "mime-support", "original-awk", "passwd", "perl", "perl-base", "perl-modules-5.36"),
    *("sysvinit-utils", "tar", "usr-is-merged", "usrmerge", "util-linux-extra", "uuid-runtime"),
)
_UNUSED = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "usr/share/bug"),
    *("usr/share/bash-completion", "usr/lib/x86_64-linux-gnu/gconv", "usr/share/gdb", "usr/share/menu"),
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
RECIPE_VERSION = 2  # rises with every change of what is done to the files that are kept
ROOMS = ("checks", "agent", "tainter", "operator", "kube", "cli", "sandbox", "helm/muster/crds")
_LAYER, _PACKED, _HASHES = "layer.tar", "layer.tar.gz", "hashes.json"
_EPOCH = "315532800"  # 1980: the oldest time that a zip can hold


def debian_packages(root: Path = ROOT) -> list[str]:
    """The list that the Containerfile installs, too."""
    lines = (root / PACKAGE_LIST).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def project_version(root: Path = ROOT) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def build_image(progress: Callable[[str], None], wheel: Path, names: Sequence[str] = ()) -> oci.OciImage:
    """The image with Muster from ``wheel``. names: by default the chart's. Raises NoPackages."""
    return oci.OciImage(
        names=tuple(names) or (f"localhost:5000/muster:{project_version()}",),
        layers=(_debian(progress), _python(progress), oci.pack_layer(muster_code_layer(wheel))),
        entrypoint=ENTRYPOINT,
        user=USER,
        environment=ENVIRONMENT,
        labels=LABELS | {"org.opencontainers.image.version": project_version()},
    )


def prepare_layers(progress: Callable[[str], None]) -> None:
    """Have the layers that are kept. Raises NoPackages."""
    _debian(progress)
    _python(progress)
    fetch_setuptools(progress)


def build_wheel(folder: Path, progress: Callable[[str], None]) -> Path:
    """Muster's wheel of this checkout, in ``folder``; the same bytes for the same files. Raises NoPackages."""
    tools = fetch_setuptools(progress)
    with tempfile.TemporaryDirectory(prefix="muster-wheel-") as place:
        # a copy: setuptools leaves folders where it builds, and takes up what lies in them the next time
        source = Path(place)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source / name)
        for name in ROOMS:
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
        run_step(command, source, {"PYTHONPATH": str(tools), "SOURCE_DATE_EPOCH": _EPOCH})
    (wheel,) = folder.glob("passmuster-*.whl")
    return wheel


def muster_code_layer(wheel: Path) -> Layer:
    """``wheel`` as pip installs it on Debian."""
    with tempfile.TemporaryDirectory(prefix="muster-layer-") as place:
        root = Path(place)
        programs = []
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                content = archive.read(name)
                top, _, rest = name.partition("/")
                _write(root / ("usr/local" if top.endswith(".data") else PACKAGES) / _within(top, rest), content)
                if name.endswith(".dist-info/entry_points.txt"):
                    for program, text in _programs(content.decode()).items():
                        programs.append(f"usr/local/bin/{program}")
                        _write(root / programs[-1], text)
        _compile(root / PACKAGES, f"/{PACKAGES}")
        files = {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}
    return make_layer(files, programs)


def _within(top: str, rest: str) -> str:
    """Where a file of a wheel lies: what is in NAME.data/data goes below the prefix."""
    return rest.removeprefix("data/") if top.endswith(".data") else f"{top}/{rest}"


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _programs(entry_points: str) -> dict[str, bytes]:
    """Name and text of each console script."""
    points = ConfigParser()
    points.read_string(entry_points)
    found = {}
    for name, target in points["console_scripts"].items():
        module, _, function = target.partition(":")
        text = f"#!/usr/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        found[name] = text.encode()
    return found


def _debian(progress: Callable[[str], None]) -> oci.PackedLayer:
    packages = (*debian_packages(), *_SLIM)
    versions = dict.fromkeys(packages, "") | {"python3": "3.11"}
    tree = PackageTree("image-debian", versions, whole=True, without=WITHOUT, recipe=RECIPE_VERSION)
    return _cache_folder(unpack_tree(tree, progress, finish=_finish))


def _finish(root: Path, result: Path) -> None:
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("etc/ssl/certs", "proc", "sys", "dev", "run", "tmp", "root", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    if not (root / "usr/bin/sh").is_symlink():
        (root / "usr/bin/sh").symlink_to("dash")
    trusted = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    # as update-ca-certificates makes it
    (root / "etc/ssl/certs/ca-certificates.crt").write_bytes(b"".join(each.read_bytes() for each in trusted))
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin")
    if ldconfig is None:
        raise NoPackages("ldconfig is missing: install libc-bin")
    subprocess.run([ldconfig, "-X", "-r", str(root)], check=True, timeout=120)
    (root / "var/cache/ldconfig/aux-cache").unlink(missing_ok=True)  # holds times
    _compile(root / "usr/lib/python3.11", "/usr/lib/python3.11")
    _keep(root, result)


def python_hashes(progress: Callable[[str], None]) -> dict[str, str]:
    """The sha256 of the file from PyPI of each package in the image, by its normal name. Raises NoPackages."""
    found: dict[str, str] = json.loads((_python_folder(progress) / _HASHES).read_text())
    return found


def _python(progress: Callable[[str], None]) -> oci.PackedLayer:
    return _cache_folder(_python_folder(progress))


def _python_folder(progress: Callable[[str], None]) -> Path:

    def make(work: Path) -> Path:
        progress("[image-python] fetching Muster's dependencies from PyPI")
        root, result = work / "root", work / "result"
        result.mkdir()
        report = work / "report.json"
        _pip_install(root / PACKAGES, work, [*WHEELS, *_locked("image"), "--report", str(report)])
        hashes = {
            name_of(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
            for each in json.loads(report.read_text())["install"]
        }
        (result / _HASHES).write_text(json.dumps(hashes))
        shutil.rmtree(root / PACKAGES / "bin", ignore_errors=True)  # programs of libraries
        _compile(root / PACKAGES, f"/{PACKAGES}")
        _keep(root, result)
        return result

    digest = _digest([_lock_file("image").read_text(), WHEELS])
    return make_once("image-python", digest, make, progress)


def fetch_setuptools(progress: Callable[[str], None]) -> Path:
    """What the wheel is built with, so that no build asks PyPI again."""

    def make(work: Path) -> Path:
        progress("[image-setuptools] fetching setuptools from PyPI")
        _pip_install(work / "tools", work, ["--only-binary=:all:", *_locked("build")])
        return work / "tools"

    return make_once("image-setuptools", _digest(_lock_file("build").read_text()), make, progress)


def _lock_file(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def _locked(name: str) -> list[str]:
    """Arguments of pip for the packages in requirements/NAME.txt, and no other files than those whose hashes it has."""
    return ["--require-hashes", "--no-deps", "--requirement", str(_lock_file(name))]


def _pip_install(target: Path, work: Path, words: Sequence[str]) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run_step([*pip, "--target", str(target), *words], work)


def _compile(folder: Path, place: str) -> None:
    """As installation would: in a container that cannot write each start would do it anew. ``place``: in the image."""
    if sys.version_info[:2] != (3, 11):
        return  # another version's compiled files serve nobody
    # by hash and never checked: a time would change the bytes, and nobody edits an image
    options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", place]
    ended = subprocess.run(
        [sys.executable, "-m", "compileall", *options, str(folder)], capture_output=True, timeout=600, check=False
    )
    if ended.returncode not in (0, 1):  # 1: files for other versions lie among a library's own
        raise NoPackages(f"compileall: {ended.stdout.decode(errors='replace')[-500:]}")


def _keep(root: Path, result: Path) -> None:
    """In ``result``: ``root`` as a gzipped layer, and the digest of what is in it."""
    plain = result / _LAYER
    with plain.open("wb") as file:
        pack(root, file)
    (result / "diff_id").write_text(digest_of(plain))
    oci.pack_layer(Layer(plain, ""), result / _PACKED)
    plain.unlink()


def _cache_folder(folder: Path) -> oci.PackedLayer:
    return oci.PackedLayer(oci.read_blob(folder / _PACKED), (folder / "diff_id").read_text())


def _digest(value: object) -> str:
    text = repr((RECIPE_VERSION, sys.version_info[:2], value))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def main(arguments: Sequence[str]) -> int:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not arguments:
        say("usage: python -m muster_sandbox.image.product FILE [NAME:TAG…]")
        return 64
    try:
        with tempfile.TemporaryDirectory(prefix="muster-image-") as folder:
            made = build_image(say, build_wheel(Path(folder), say), arguments[1:])
            with Path(arguments[0]).open("wb") as file:
                oci.write_archive(made, file)
    except NoPackages as error:
        say(f"muster: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""podman, in a machine within this one: it builds images as on anybody's machine, and leaves nothing behind.

Its programs are Debian's, unpacked and not installed. Each command has mounts and processes of its own, which end with
it; what podman keeps is in one folder. debian:bookworm-slim, which comes from nowhere here, is made of Debian's
packages, and how this machine reaches their mirror and PyPI's holds within a build, too.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests import mirrors

from muster_sandbox.programs.apt import SUITE, debian_mirrors
from muster_sandbox.programs.packages import (
    NoPackages,
    PackageTree,
    fetch_packages,
    make_once,
    run_step,
    unpack,
    unpack_tree,
)

ROOT = Path(__file__).resolve().parents[2]
BASE = "debian:bookworm-slim"
LIMIT_S = 540.0
PODMAN = PackageTree(
    "podman",
    {"podman": "4.3.", "make": "", "base-files": "", "coreutils": "", "dash": "", "libc-bin": "", "sed": ""},
    whole=True,
    without=("gnupg-l10n", "libperl5.36", "perl", "perl-base", "perl-modules-5.36"),
)
# what has the priority "required", and apt
SLIM = PackageTree(
    "slim",
    dict.fromkeys(
        (
            *("apt", "base-files", "base-passwd", "bash", "bsdutils", "coreutils", "dash", "debconf", "debianutils"),
            *("debian-archive-keyring", "diffutils", "dpkg", "e2fsprogs", "findutils", "grep", "gzip", "hostname"),
            *("init-system-helpers", "libc-bin", "libpam-runtime", "login", "mawk", "mount", "ncurses-base"),
            *("ncurses-bin", "passwd", "perl-base", "sed", "sysvinit-utils", "tar", "tzdata", "usr-is-merged"),
            "util-linux",
        ),
        "",
    ),
    whole=True,
)
_UNWANTED = ("doc", "info", "lintian", "locale", "man")
# as that image has it: what is unwanted is not unpacked, and what was fetched does not stay
_SLIM_FILES = {
    "etc/dpkg/dpkg.cfg.d/docker": "".join(f"path-exclude /usr/share/{each}/*\n" for each in _UNWANTED),
    "etc/apt/apt.conf.d/docker-clean": (
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\n'
        'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\nAcquire::Languages "none";\n'
    ),
}
_ARCHIVE = "root.tar"
_UNSHARED = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
# installs what is unpacked already: first who owns files, then all of it
_CONFIGURE = rf"""
set -eu
for place in proc sys dev; do mkdir -p "$1/$place"; done
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
ln -s mawk "$1/usr/bin/awk"
: > "$1/var/lib/dpkg/status"
chroot "$1" /sbin/ldconfig
install="dpkg --force-depends --force-unsafe-io --force-confold --install"
env -i PATH=/usr/sbin:/usr/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot "$1" \
  sh -euc "cd debs; $install base-passwd_*; $install base-files_*; $install ./*.deb; rm -r /debs"
for name in {" ".join(_UNWANTED)}; do rm -rf "$1/usr/share/$name"; done
tar --create --file "$2" --directory "$1" --one-file-system --numeric-owner .
"""
# $1: the tree. $2: a folder. All that is written goes into memory, but for what podman keeps
_INSIDE = """
set -eu
tree=$1 work=$2; shift 2
mount -t tmpfs tmpfs "$work/state"
root=$work/state/root
mkdir "$work/state/upper" "$work/state/scratch" "$root"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$work/state/upper,workdir=$work/state/scratch" "$root"
for place in proc sys dev run tmp var/tmp var/lib/containers muster given; do mkdir -p "$root/$place"; done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --bind "$work/storage" "$root/var/lib/containers"
mount --bind "$PWD" "$root/muster"
mount --bind "$work/given" "$root/given"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp "$work/given/containers.conf" "$root/etc/containers/"
chroot "$root" /sbin/ldconfig
exec chroot "$root" sh -euc 'cd /muster; "$@"' sh "$@"
"""


class Engine:
    """Commands run in the checkout; /given is :attr:`given`.

    Takes root. tree: of :func:`podman`. work: an empty folder.
    """

    def __init__(self, tree: Path, work: Path) -> None:
        self._tree, self._work = tree, work
        self.given = work / "given"
        for name in ("state", "storage", "given"):
            (work / name).mkdir()
        _show_the_way(self.given)

    def run(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root", "BUILDAH_ISOLATION": "chroot"}
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return subprocess.run(
            [*_UNSHARED, "sh", "-c", _INSIDE, "sh", str(self._tree), str(self._work), *words],
            cwd=ROOT, env=environment | proxies, input=stdin,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip


def podman(progress: Callable[[str], None]) -> Path:
    """Its tree. Raises NoPackages."""
    return unpack_tree(PODMAN, progress)


def slim(progress: Callable[[str], None]) -> Path:
    """The archive of a root file system, as :data:`BASE` has it. Takes root. Raises NoPackages."""

    def make(work: Path) -> Path:
        debs = fetch_packages(SLIM, work, progress)
        progress(f"[{SLIM.name}] installing {len(debs)} packages")
        root, result = work / "root", work / "result"
        unpack(debs, root, whole=True)
        for name, text in _SLIM_FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "debs").mkdir()
        for deb in debs:
            deb.rename(root / "debs" / deb.name)
        result.mkdir()
        run_step([*_UNSHARED, "sh", "-c", _CONFIGURE, "sh", str(root), str(result / _ARCHIVE)], work)
        return result

    digest = hashlib.blake2b(repr((SLIM.digest, _CONFIGURE, _SLIM_FILES)).encode(), digest_size=6).hexdigest()
    return make_once(SLIM.name, digest, make, progress) / _ARCHIVE


def _show_the_way(given: Path) -> None:
    """To the mirrors, for what RUN starts: as this machine's apt and pip go it."""
    found = debian_mirrors()
    if not found:
        raise NoPackages("apt has no Debian source (see sources.list(5))")
    (given / "sources.list").write_text(f"deb {found[0]} {SUITE} main\n")
    (given / "apt.conf").write_text(mirrors.apt_settings())
    (given / "pip.conf").write_text(mirrors.pip_settings("/given/certificates"))
    if certificates := mirrors.certificates():
        shutil.copyfile(certificates, given / "certificates")
    volumes = [
        *("/given:/given:ro", "/given/pip.conf:/etc/pip.conf:ro", "/given/sources.list:/etc/apt/sources.list:ro"),
        "/given/apt.conf:/etc/apt/apt.conf:ro",
    ]
    (given / "containers.conf").write_text(f"[containers]\nvolumes = {json.dumps(volumes)}\n")

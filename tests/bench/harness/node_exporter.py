"""Debian's prometheus-node-exporter, the agent that most nodes run already: what a small one takes.

It is fetched with apt-get (so by the machine's own sources, proxies and keys) and unpacked into the cache, not
installed. The version is pinned, as the figures are compared from one run to the next.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from muster_sandbox.programs.binaries import cache_directory

PACKAGE, VERSION = "prometheus-node-exporter", "1.5.0-1+b6"
FETCH_LIMIT_S = 300.0


class NotToBeHad(Exception):
    """Why there is no node exporter, and what to do."""


def find_or_fetch() -> Path:
    """The program. Raises NotToBeHad."""
    kept = cache_directory().parent / "node-exporter" / VERSION / PACKAGE
    if kept.is_file():
        return kept
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotToBeHad(f"{PACKAGE} {VERSION} comes from Debian's archive, and this machine has no apt-get")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        folder = Path(place)
        # as root apt would switch to a user who cannot write here
        _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", f"{PACKAGE}={VERSION}"], folder)
        for package in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)
        (folder / "root/usr/bin" / PACKAGE).rename(kept)  # whole, or not at all
    return kept


def _run(command: list[str], folder: Path) -> None:
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{command[0]}: no end within {FETCH_LIMIT_S:.0f} s") from None
    if ended.returncode:
        said = " ".join(ended.stderr.split())[:300]
        raise NotToBeHad(f"{' '.join(command[:1])}: {said}; try apt-get update (Debian 12)")

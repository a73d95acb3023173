"""The Debian packages that building the control plane needs.

``python -m muster_sandbox.programs.requirements`` installs missing ones with apt, as root; otherwise it prints the
command and exits with 1.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from muster_sandbox.programs import binaries

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

AGAIN_AFTER_S = (5.0, 20.0, 60.0)  # a mirror may be unavailable for a moment

# program or file -> Debian package
_NEEDS: dict[str, str] = {
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "tar": "tar",
    "gzip": "gzip",
    str(KEYRING): "debian-archive-keyring",
}
REQUIRED_PACKAGES = tuple(_NEEDS.values())


def missing_packages() -> list[str]:
    """Debian packages that the build needs and this machine lacks."""
    return [
        package
        for need, package in _NEEDS.items()
        if not (Path(need).exists() if need.startswith("/") else shutil.which(need))
    ]


def install_command(packages: list[str]) -> str:
    return f"apt-get update && apt-get install --no-install-recommends --yes {' '.join(packages)}"


def main() -> int:
    try:
        found = binaries.find_binaries()
    except binaries.NoControlPlane as error:
        print(f"muster: {error}", file=sys.stderr)
        return 1
    missing = missing_packages()
    if found is not None or not missing:
        return 0
    if shutil.which("apt-get") is None:
        print(
            "muster: cannot build the control plane: it needs Debian packages, and this machine has no apt-get: set "
            f"KUBEBUILDER_ASSETS to a folder with {', '.join(binaries.PROGRAMS)}",
            file=sys.stderr,
        )
        return 1
    if os.geteuid() != 0:
        command = install_command(missing)
        print(f"muster: cannot build the control plane: run as root: {command}", file=sys.stderr)
        return 1
    return 0 if install(missing) else 1


def install(packages: list[str], *, again_after_s: Sequence[float] = AGAIN_AFTER_S) -> bool:
    """Install with apt, as root; retry after each of the pauses. Prints errors only."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends", "--yes"]
    for pause_s in (0.0, *again_after_s):
        time.sleep(pause_s)
        # apt does not report partly fetched lists as an error; the install then fails
        subprocess.run(["apt-get", "-qq", "update"], check=False, env=environ)
        # even with -qq, dpkg prints several lines for each package
        done = subprocess.run([*install, *packages], check=False, env=environ, stdout=subprocess.DEVNULL)
        if done.returncode == 0:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())

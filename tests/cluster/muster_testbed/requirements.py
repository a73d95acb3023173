"""What building the control plane needs of the machine; ``python -m muster_testbed.requirements`` sees to it.

As root it installs what is missing through apt; otherwise it prints the command and exits 1.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from muster_testbed import binaries

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

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
        found = binaries.find()
    except binaries.NoControlPlane as error:
        print(error, file=sys.stderr)
        return 1
    missing = missing_packages()
    if found is not None or not missing:
        return 0
    if shutil.which("apt-get") is None:
        print(
            "the control plane is built from Debian's packages, and this machine has no apt-get: set "
            f"KUBEBUILDER_ASSETS to a folder with {', '.join(binaries.PROGRAMS)}",
            file=sys.stderr,
        )
        return 1
    if os.geteuid() != 0:
        print(f"to build the control plane, run as root: {install_command(missing)}", file=sys.stderr)
        return 1
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "--no-install-recommends", "--yes", *missing],
    ):
        done = subprocess.run(command, check=False, env=environ)
        if done.returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the tests take of the machine beside Python: Debian's packages, root, the kernel log.

`python -m tests.machine TARGET` installs, as root, the packages that a make target lacks; else it prints one line that
says how. A test that lacks something is skipped, and conftest.py counts these; in CI it fails instead.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from muster_sandbox.programs.requirements import AGAIN_AFTER_S, install, install_command

CI = bool(os.environ.get("CI"))
_NEEDS = "needs "  # begins the reason of such a skip


class Program(NamedTuple):
    """file: a program on PATH, or an absolute path. targets: of the Makefile."""

    file: str
    package: str
    targets: frozenset[str]
    reason: str


def _program(file: str, package: str, targets: str, reason: str) -> Program:
    return Program(file, package, frozenset(targets.split()), reason)


# `make sandbox` takes none of these. What it takes is in muster_sandbox.programs.requirements, as it is also started
# without a checkout; what .venv takes is in tests/environment.sh, as no Python package is there before
PROGRAMS = (
    _program("chromedriver", "chromium-driver", "test screenshots", "tests of the fleet page drive Chromium"),
    _program("chromium", "chromium", "test screenshots", "tests of the fleet page"),
    _program("curl", "curl", "test", "calls in the documents are made as people type them"),
    _program("fish", "fish", "test", "completion scripts are loaded by each shell"),
    _program("gcc", "gcc", "test", "compiles the CUDA driver and the NVML that tests stand on"),
    _program("/usr/include/stdio.h", "libc6-dev", "test", "gcc's headers"),
    _program("ip", "iproute2", "test", "networks and nodes in namespaces"),
    _program("iperf3", "iperf3", "test", "the check iperf"),
    _program("journalctl", "systemd", "test", "the check dmesg reads a journal"),
    # also a kubectl that is none of Debian's does
    _program("kubectl", "kubernetes-client", "test tour", "commands in the documents"),
    _program("mount", "mount", "test chaos", "nodes in namespaces"),
    _program("nsenter", "util-linux", "test chaos", "nodes in namespaces"),
    _program("ping", "iputils-ping", "test", "the check ping"),
    _program("unshare", "util-linux", "test chaos", "nodes in namespaces"),
    _program("zsh", "zsh", "test", "completion scripts are loaded by each shell"),
)
PACKAGES = {program.file: program.package for program in PROGRAMS}


def is_there(file: str) -> bool:
    return Path(file).exists() if file.startswith("/") else shutil.which(file) is not None


def _opens(device: str) -> bool:
    """Its mode does not say: with kernel.dmesg_restrict=1, opening it for reading needs CAP_SYSLOG."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _lack(want: str) -> str:
    """Why ``want`` (a program of the table, "root" or "/dev/kmsg") cannot be had; empty if it can."""
    if want == "root":
        return "" if os.geteuid() == 0 else want
    if want == "/dev/kmsg":
        return "" if _opens(want) else want
    return "" if is_there(want) else f"{want} (Debian's {PACKAGES[want]})"


def find_lack(*wants: str) -> str:
    """Of ``wants`` the first that is not there, for people; empty where all are."""
    return next((lack for want in wants if (lack := _lack(want))), "")


def require(*wants: str) -> None:
    """For fixtures: skips the test without one of them, or fails it in CI."""
    if lack := find_lack(*wants):
        skip(lack)


def skip(want: str, detail: str = "") -> NoReturn:
    """For what only a trial shows: skips the test that ``want`` is missing for, or fails it in CI."""
    reason = _NEEDS + want + (f": {detail}" if detail else "")
    if CI:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def needs(*wants: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped without one of them; in CI they run, and fail."""
    lack = find_lack(*wants)
    return pytest.mark.skipif(bool(lack) and not CI, reason=_NEEDS + lack)


def lack_of(report: pytest.TestReport) -> str:
    """What a skipped test was skipped for want of; empty where that was not why."""
    if not isinstance(report.longrepr, tuple):
        return ""
    reason = report.longrepr[2].removeprefix("Skipped: ")
    return reason.removeprefix(_NEEDS).partition(":")[0] if reason.startswith(_NEEDS) else ""


def summary(skipped: Iterable[pytest.TestReport]) -> str:
    """One line about tests that were skipped for want of something; empty where none was."""
    wants = Counter(lack for report in skipped if (lack := lack_of(report)))
    if not wants:
        return ""
    counts = ", ".join(f"{want} {count}" for want, count in wants.most_common())
    return f"muster: {wants.total()} tests were skipped, as this machine or user lacks: {counts}"


def main(arguments: Sequence[str], *, again_after_s: Sequence[float] = AGAIN_AFTER_S) -> int:
    (target,) = arguments
    missing = sorted({each.package for each in PROGRAMS if target in each.targets and not is_there(each.file)})
    if not missing:
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"muster: installing {' '.join(missing)}", file=sys.stderr, flush=True)
        if install(missing, again_after_s=again_after_s):
            return 0
    print(f"muster: tests of {' '.join(missing)} are skipped; as root: {install_command(missing)}", file=sys.stderr)
    return 1 if CI else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

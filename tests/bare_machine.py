"""`make sandbox` and `make test` on a bare Debian 12, by root and by another user, as the README promises them.

    .venv/bin/python -m tests.bare_machine "tests/kube tests/cli"      # ARGS of make test; without any, all tests

debootstrap (Debian's package of that name) makes a root file system with git, make and python3, from the mirror that
this machine's apt has. This checkout's HEAD is cloned in it. Every step has mounts and processes of its own, which end
with it; at the end the folder goes. Takes root, 10 GB of disk, and 20 minutes beside the tests.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import mirrors

from muster_sandbox.programs.apt import SUITE, debian_mirrors

ROOT = Path(__file__).resolve().parents[1]
PREREQUISITES = "git make python3"
USER = 1000
BUNDLE = "srv/muster.bundle"
_UNSHARED = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
# $1: the root. $2: a user's number. The rest is a command, in that user's home. pivot_root and not chroot, as programs
# in it change how its mounts are shared
_ENTER = """
set -eu
root=$1 user=$2; shift 2
hostname bare
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
cp /etc/resolv.conf "$root/etc/"
mkdir -p "$root/mnt/outside"
cd "$root"
pivot_root . mnt/outside
umount -l /mnt/outside
home=$(getent passwd "$user" | cut -d: -f6)
cd "$home"
# a child of this shell, not in its place: a process that changes its user outlives the one that started it
env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 TERM=dumb HOME="$home" \\
  setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
exit 0
"""
# job control gives the sandbox a process group of its own, which Ctrl-C on a terminal would reach as a whole
_SANDBOX = """
set -m
make sandbox ARGS=--plain &
sandbox=$!
until .venv/bin/muster sandbox pod trial 2>/dev/null; do
  kill -0 $sandbox || exit 1
  sleep 2
done
kill -INT -- -$sandbox
wait $sandbox
code=$?
[ $code = 0 ] || [ $code = 130 ] || { echo "make sandbox: exit code $code"; exit 1; }
for process in /proc/[0-9]*; do
  case $process in /proc/1 | /proc/$$) continue ;; esac
  words=$(tr '\\0' ' ' < "$process/cmdline") 2>/dev/null && [ -n "$words" ] || continue
  echo "still running: $words"
  exit 1
done
! grep muster /proc/mounts
"""


class BareMachine:
    """A root file system; ``run`` starts commands in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        _step("debootstrap", ["debootstrap", "--variant=minbase", SUITE, str(self.root), debian_mirrors()[0]])
        (self.root / "etc/apt/apt.conf").write_text(mirrors.apt_settings())
        (self.root / "etc/pip.conf").write_text(mirrors.pip_settings("/etc/muster-certificates.pem"))
        if certificates := mirrors.certificates():
            shutil.copyfile(certificates, self.root / "etc/muster-certificates.pem")
        self.run(
            "the README's prerequisites", f"apt-get -qq update && apt-get -qq install -y {PREREQUISITES} >/dev/null"
        )
        self.run("a user", f"useradd --create-home --shell /bin/bash --uid {USER} tester")

    def clone(self, user: int) -> None:
        subprocess.run(["git", "bundle", "create", "--quiet", str(self.root / BUNDLE), "HEAD"], cwd=ROOT, check=True)
        self.run("git clone", f"rm -rf muster && git clone --quiet /{BUNDLE} muster", user)

    def run(self, what: str, script: str, user: int = 0) -> None:
        name = "root" if user == 0 else "another user"
        words = [*_UNSHARED, "sh", "-c", _ENTER, "sh", str(self.root), str(user), "bash", "-c", script]
        _step(f"{name}: {what}", words)

    def remove(self) -> None:
        assert str(self.root) not in Path("/proc/mounts").read_text(), f"mounts are left below {self.root}"
        shutil.rmtree(self.root)


def _step(what: str, words: list[str]) -> None:
    print(f"=== {what}", flush=True)
    started = time.monotonic()
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)
    print(f"=== {what}: {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("args", nargs="?", default="", metavar="ARGS", help="of make test; default: all tests")
    parser.add_argument(
        "--folder", type=Path, help="keep the root file system there, or go on with the one that is there"
    )
    arguments = parser.parse_args()
    if shutil.which("debootstrap") is None:
        parser.error("debootstrap is missing: apt-get install debootstrap")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="muster-bare-", dir="/var/tmp"))
    machine = BareMachine(folder / "root")
    test = f"cd muster && make test{f' ARGS={arguments.args!r}' if arguments.args else ''}"
    try:
        if not (machine.root / "home/tester").is_dir():
            machine.make()
        machine.clone(0)
        machine.run("make sandbox", f"cd muster && {_SANDBOX}")
        machine.clone(USER)
        # minutes of building, which the root user's run has proven
        machine.run("the control plane is kept", f"mkdir -p ~tester/.cache && cp -a .cache/muster ~tester/.cache/ && "
                    f"chown -R {USER}:{USER} ~tester/.cache")  # fmt: skip
        machine.run("make sandbox", f"cd muster && {_SANDBOX}", USER)
        machine.run("make test, with what is there", test, USER)
        machine.run("make test", test)
        machine.run("make test, with the packages that root has installed", test, USER)
    except subprocess.CalledProcessError as error:
        print(f"=== failed with exit code {error.returncode}", flush=True)
        return 1
    finally:
        if arguments.folder is None:
            machine.remove()
            folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())

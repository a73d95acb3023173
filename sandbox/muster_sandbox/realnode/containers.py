"""A machine within this one: separate namespaces for network, mounts and processes, with containerd in them.

All its processes descend from its first process, and all its mounts and network devices belong to these namespaces, so
they end with that process, even after SIGKILL. Only the control groups are outside, in one group of ours.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import IO, cast

import psutil

from muster_sandbox.image.layers import Image, write_archive
from muster_sandbox.processes import ManagedProcess, ProcessReaper, wait_for

ADDRESS = "10.77.0.1"  # the machine's
GATEWAY = "10.77.0.2"  # of Services
SERVICES = "10.96.0.0/16"
SERVICE = "10.96.0.1"  # the API server's Service
DNS = "10.96.0.10"  # likewise
PODS = "10.78.0.0/24"
PAUSE = "localhost/muster-pause:1"
KEPT = "/var/lib/muster /var/lib/kubelet"
OUTSIDE_ADDRESS = "services"  # a network namespace, as pods of the machine's network may want a Service's port
READY = "machine is up"
PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "ip": "iproute2"}
_numbers = count(1)

# The first process. /run, /var/log and the folders of pods are private, because programs write there regardless of
# their settings. Mounts are shared inside, as with systemd, so that pods see later mounts. The veth pair leads to
# Services and provides an interface besides loopback, which MPI does not use. The waiting shell reaps orphans.
_FIRST = f"""
set -eu
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount --make-rshared /
for place in {KEPT}; do
  mkdir -p "$place"
  mount -t tmpfs tmpfs "$place"
done
ip link set lo up
ip addr add {SERVICE}/32 dev lo
ip addr add {DNS}/32 dev lo
ip netns add {OUTSIDE_ADDRESS}
ip link add eth0 type veth peer name wire netns {OUTSIDE_ADDRESS}
ip addr add {ADDRESS}/24 dev eth0
ip link set eth0 up
ip -n {OUTSIDE_ADDRESS} link set lo up
ip -n {OUTSIDE_ADDRESS} addr add {GATEWAY}/24 dev wire
ip -n {OUTSIDE_ADDRESS} link set wire up
ip -n {OUTSIDE_ADDRESS} route add local {SERVICES} dev lo
ip -n {OUTSIDE_ADDRESS} route add {PODS} via {ADDRESS}
ip route add {SERVICES} via {GATEWAY}
echo 1 > /proc/sys/net/ipv4/ip_forward
echo {READY}
while :; do sleep 3600; done
"""


def find_obstacle() -> str:
    """Why this process cannot create such a machine; empty if it can."""
    if os.uname().machine != "x86_64":
        return f"images are made for x86_64, this is {os.uname().machine}"
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if os.geteuid() != 0:
        return "it needs root"
    if missing:
        return f"apt-get install --no-install-recommends {' '.join(missing)}"
    try:
        done = subprocess.run(
            [*_unshare(), "sh", "-c", "mount -t tmpfs tmpfs /run && ip link add eth0 type veth peer name wire"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            return f"namespaces are not allowed here: {done.stderr.strip()}"
        group = ControlGroup(f"muster-try-{os.getpid()}")
        try:
            group.make()
        finally:
            group.remove()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not allowed here: {error}"
    return ""


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


class ControlGroup:
    """A control group in every hierarchy there is: many with version 1, one with version 2."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._roots = _hierarchies()

    @property
    def places(self) -> list[Path]:
        return [root / self.name for root in self._roots]

    def make(self) -> None:
        """Raises OSError."""
        for place in self.places:
            place.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 has a new group begin with none
                if (place / setting).exists() and (place.parent / setting).exists():
                    (place / setting).write_text((place.parent / setting).read_text())

    def remove(self, *, limit_s: float = 30.0) -> None:
        """Once its processes have ended, which is waited for. Raises OSError."""
        ends = time.monotonic() + limit_s
        for place in self.places:
            while place.exists():
                try:
                    for folder, _, _ in os.walk(place, topdown=False):
                        Path(folder).rmdir()
                except OSError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.05)


def _hierarchies() -> list[Path]:
    mounts = psutil.disk_partitions(all=True)
    return [Path(mount.mountpoint) for mount in mounts if mount.fstype in ("cgroup", "cgroup2")]


class NestedMachine:
    """data: a folder for all its files. runtime: the unpacked packages of containerd (``packages.RUNTIME``)."""

    def __init__(self, data: Path, runtime: Path, reaper: ProcessReaper) -> None:
        self.data = data
        self.group = ControlGroup(f"muster-{os.getpid()}-{next(_numbers)}")
        self._runtime = runtime
        self._reaper = reaper
        self._first = ManagedProcess("machine", [*_unshare(), "sh", "-c", _FIRST], data / "machine.log", reaper)
        self._containerd: ManagedProcess | None = None

    def start(self, limit_s: float) -> None:
        self.group.make()
        self._first.start()
        wait_for(
            lambda: READY in self._first.tail(), alive=[self._first], timeout_s=limit_s, what="namespaces of a machine"
        )

    @property
    def pid(self) -> int:
        """Of its first process, as seen from here."""
        self._first.require_alive()
        # unshare stays outside, as the parent of the process that is the first inside
        return psutil.Process(self._first.pid).children()[0].pid

    @property
    def services(self) -> Path:
        """The network namespace that every Service's address leads to, but for the API server's and the DNS'."""
        return Path(f"/proc/{self.pid}/root/run/netns/{OUTSIDE_ADDRESS}")

    @property
    def on_its_network(self) -> list[str]:
        """The beginning of a command line: the rest of it runs here, with the machine's network."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    @property
    def inside(self) -> list[str]:
        """The beginning of a command line: the rest of it runs in the machine."""
        binaries = f"{self._runtime}/usr/bin:{self._runtime}/usr/sbin"
        path = f"PATH={binaries}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        libraries = f"LD_LIBRARY_PATH={self._runtime}/usr/lib/x86_64-linux-gnu"
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--", "env", path, libraries]

    @property
    def socket(self) -> Path:
        return self.data / "containerd.sock"

    def start_containerd(self, limit_s: float) -> None:
        (self.data / "cni").mkdir()
        (self.data / "cni/10-pods.conflist").write_text(_NETWORK.format(data=self.data, pods=PODS))
        (self.data / "containerd.toml").write_text(
            _CONTAINERD.format(
                data=self.data,
                socket=self.socket,
                pause=PAUSE,
                plugins=self._runtime / "usr/lib/cni",
                runc=shutil.which("runc", path=f"{self._runtime}/usr/sbin:{self._runtime}/usr/bin"),
                snapshotter=self._snapshotter(),
            )
        )
        command = [*self.inside, "containerd", "--config", str(self.data / "containerd.toml")]
        self._containerd = ManagedProcess("containerd", command, self.data / "containerd.log", self._reaper)
        self._containerd.start()
        wait_for(
            lambda: self._ctr("version").returncode == 0, alive=[self._containerd], timeout_s=limit_s, what="containerd"
        )

    def import_images(self, images: Sequence[Image], limit_s: float) -> None:
        """Raises RuntimeError."""
        with self._importing() as importing:
            with (
                contextlib.suppress(BrokenPipeError),
                cast("IO[bytes]", importing.stdin) as pipe,
            ):  # it says below why it has gone
                write_archive(images, pipe)
            importing.stdin = None  # else it would be flushed once more
            _ended(importing, limit_s)

    def _importing(self) -> "subprocess.Popen[bytes]":
        command = [*self.inside, *self._to_containerd("images", "import", "-")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def components(self) -> list[ManagedProcess]:
        return [self._first, *([self._containerd] if self._containerd else [])]

    def stop(self) -> None:
        """End all its processes and remove everything. Does nothing if nothing runs."""
        for component in reversed(self.components()):
            component.kill()
        self.group.remove()

    def _ctr(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        command = [*self.inside, *self._to_containerd(*words)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False)

    def _to_containerd(self, *words: str) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words]

    def _snapshotter(self) -> str:
        """Overlays, unless the folder lies on a file system that cannot carry them: an overlay itself, mostly."""
        folders = [self.data / "try" / name for name in ("lower", "upper", "work", "merged")]
        for folder in folders:
            folder.mkdir(parents=True)
        lower, upper, work, merged = folders
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        tried = subprocess.run(
            [*self.inside, "mount", "-t", "overlay", "-o", options, "overlay", str(merged)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        return "overlayfs" if tried.returncode == 0 else "native"


def _ended(importing: "subprocess.Popen[bytes]", limit_s: float) -> None:
    try:
        _, errors = importing.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        importing.kill()
        raise
    if importing.returncode:
        raise RuntimeError(f"ctr images import: {errors.decode(errors='replace')}")


_NETWORK = """{{"cniVersion": "0.4.0", "name": "pods", "plugins": [{{"type": "ptp", "ipMasq": false, "ipam": {{
  "type": "host-local", "ranges": [[{{"subnet": "{pods}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}],
  "dataDir": "{data}/addresses"}}}}]}}
"""

# restrict_oom_score_adj: where root lacks CAP_SYS_RESOURCE runc cannot lower it, and every sandbox would die
_CONTAINERD = """version = 2
root = "{data}/containerd"
state = "{data}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{data}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{runc}"
"""

"""Which processes of the node have an accelerator open, from the links in /proc/PID/fd.

This includes containers, because a link has the device's name inside its container. :class:`DeviceScan` reports what is
not visible: without CAP_SYS_PTRACE the processes of other users, and without the host's PID namespace all processes
outside the agent's container.

psutil does not serve: its open_files() omits devices, and it has one /proc for the whole process, while ``--root`` may
be another node's tree.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_text
from muster_checks.base.declaration import NodeView

_MOST_ANCESTORS = 64
_COMM_LENGTH = 15  # the kernel truncates names of programs to this length
_DELETED = " (deleted)"

DEVICE = re.compile(
    r"/dev/(?:nvidia[0-9]+|nvidia-uvm|kfd|dri/renderD[0-9]+|ipu[0-9]+(?:_ex|_mem)?|accel[0-9]+|accel/accel[0-9]+"
    r"|hl[0-9]+|neuron[0-9]+|davinci[0-9]+)"
)
"""NVIDIA, AMD and other render nodes, Graphcore (not Intel's camera ipu-psys0), accel subsystem and TPU, Gaudi, Neuron,
Ascend. Without nvidiactl and the control nodes of Neuron and Gaudi, which readers of counters open too."""

DRIVERS = ("nvidia", "amdgpu", "habanalabs", "neuron")
"""Modules in /sys/module of such devices, which may be missing in the agent's own /dev."""

DAEMONS = {
    "nvidia-persistenced": "keeps the driver loaded",
    "nv-fabricmanager": "sets up NVSwitches",
    "nvidia-imex": "shares memory between nodes for jobs, which are visible themselves",
    "nvidia-cuda-mps-server": "holds the contexts of its clients, which are visible themselves",
    "nvidia-cuda-mps-control": "controls nvidia-cuda-mps-server",
    "nv-hostengine": "DCGM: reads counters",
    "dcgm-exporter": "embeds DCGM",
    "dcgmi": "queries or embeds DCGM",
    "nvidia-smi": "reads counters",
    "nvtop": "reads counters",
    "nvidia-device-plugin": "allocates devices",
    "gpu-kubelet-plugin": "allocates devices (DRA)",
    "gpu-feature-discovery": "labels nodes",
    "nvidia-mig-manager": "sets up MIG",
    "k8s-device-plugin": "allocates devices (AMD)",
    "amd-smi": "reads counters",
    "rocm-smi": "reads counters",
    "gc-monitor": "reads counters",
    "gc-info": "reads counters",
}
"""Programs that open accelerators without running work on them."""

DIAGNOSTICIANS = frozenset(("nv-hostengine", "dcgm-exporter"))
"""Daemons whose children (nvvs) run diagnostics, requested by the check dcgm or by others."""

_NO_WORK = {name[:_COMM_LENGTH] for name in DAEMONS}
_DIAGNOSTICIANS = {name[:_COMM_LENGTH] for name in DIAGNOSTICIANS}


class DeviceUser(msgspec.Struct, frozen=True, order=True):
    """A process and a device that it has open. diagnosis: it is a child of DCGM's daemon."""

    pid: int
    name: str
    device: str
    diagnosis: bool = False


class DeviceScan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scan.

    users:      processes with accelerators, except the agent's own, sorted by PID
    unreadable: number of processes whose open files are not accessible
    hidden:     only the processes of one container are visible
    cut_short:  the time limit ended the scan
    cpu_s:      CPU time of the scan
    """

    users: tuple[DeviceUser, ...] = ()
    unreadable: int = 0
    hidden: bool = False
    cut_short: bool = False
    cpu_s: float = 0.0


def has_accelerators(view: NodeView) -> bool:
    """Whether the node has accelerators."""
    nodes = [f"/dev/{name}" for name in names_in(view.path("/dev"))]
    for folder in ("/dev/dri", "/dev/accel"):
        nodes += [f"{folder}/{name}" for name in names_in(view.path(folder))]
    return any(map(DEVICE.fullmatch, nodes)) or any(view.path(f"/sys/module/{name}").is_dir() for name in DRIVERS)


def has_nvidia(view: NodeView) -> bool:
    return view.path("/sys/module/nvidia").is_dir() or any(
        re.fullmatch(r"nvidia[0-9]+", name) for name in names_in(view.path("/dev"))
    )


def scan_device_users(
    view: NodeView, *, limit_s: float, device: str = "", clock: Callable[[], float] = time.monotonic
) -> DeviceScan:
    """Scan all processes except the agent and its children. Takes at most about ``limit_s``; run it in a thread.

    device: the only device of interest (``/dev/nvidia3``); empty: all
    """
    begun, cpu_begun = clock(), time.thread_time()
    processes = _Processes(view)
    # under another root, links begin with its path
    prefix = "" if view.root == Path("/") else str(view.root)
    users = []
    unreadable, cut_short = 0, False
    for pid in processes.numbers():
        if clock() - begun > limit_s:
            cut_short = True
            break
        try:
            found = _device_of(f"{processes.folder}/{pid}/fd", prefix, device)
        except PermissionError:
            unreadable += processes.can_hold_files(pid)
            continue
        except OSError:
            continue  # the process has ended
        if found and (user := processes.user(pid, found)):
            users.append(user)
    return DeviceScan(
        users=tuple(users),
        unreadable=unreadable,
        hidden=processes.hidden(),
        cut_short=cut_short,
        cpu_s=time.thread_time() - cpu_begun,
    )


def _device_of(files: str, prefix: str, wanted: str) -> str:
    """The first accelerator among the open files of a process, or the one that is ``wanted``; empty if there is none.
    Raises OSError."""
    folder = os.open(files, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - no Path takes a descriptor
            try:
                target = os.readlink(name, dir_fd=folder)
            except OSError:
                continue  # closed meanwhile
            target = target.removeprefix(prefix)
            target = target.removesuffix(_DELETED)
            if target == wanted or (not wanted and target.startswith("/dev/") and DEVICE.fullmatch(target)):
                return target
    finally:
        os.close(folder)
    return ""


class _Processes:
    """The processes in /proc. Each is read once."""

    def __init__(self, view: NodeView) -> None:
        self.folder = view.path("/proc")
        try:
            # the agent's PID in the namespace of this /proc
            self._own = int(str((self.folder / "self").readlink()))
        except (OSError, ValueError):
            self._own = 0
        self._read: dict[int, tuple[str, str, int]] = {}

    def numbers(self) -> list[int]:
        return sorted(int(name) for name in names_in(self.folder) if name.isascii() and name.isdigit())

    def hidden(self) -> bool:
        """Whether this is the /proc of a container: on a host, PID 2 is kthreadd."""
        return self._stat(2)[0] != "kthreadd"

    def can_hold_files(self, pid: int) -> bool:
        """Whether it is neither a kernel thread nor dead."""
        _, state, parent = self._stat(pid)
        return pid != 2 and parent != 2 and state not in ("", "Z", "X")

    def user(self, pid: int, device: str) -> DeviceUser | None:
        """None if the process is the agent's or runs no work on accelerators."""
        name = self._stat(pid)[0]
        above = self._ancestors(pid)
        if (self._own and (pid == self._own or self._own in above)) or name in _NO_WORK:
            return None
        diagnosis = any(self._stat(number)[0] in _DIAGNOSTICIANS for number in above)
        return DeviceUser(pid, name or "?", device, diagnosis)

    def _ancestors(self, pid: int) -> list[int]:
        found: list[int] = []
        while len(found) < _MOST_ANCESTORS and (pid := self._stat(pid)[2]) > 0:
            found.append(pid)
        return found

    def _stat(self, pid: int) -> tuple[str, str, int]:
        """Name, state and parent; empty and 0 if it has ended. Source: proc(5), /proc/PID/stat."""
        if pid not in self._read:
            text = read_text(self.folder / str(pid) / "stat", 4096) or ""
            name, _, rest = text.partition("(")[2].rpartition(") ")  # the name may contain any character
            words = rest.split(maxsplit=2)
            parent = words[1] if len(words) > 1 else ""
            plain = "".join(character if character.isprintable() else "?" for character in name)
            known = parent.isascii() and parent.isdigit()
            self._read[pid] = (plain, words[0], int(parent)) if known else ("", "", 0)
        return self._read[pid]

"""Which processes have an accelerator open: trees laid out as /proc has them, and real processes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine import needs

from muster_agent.idle.device_users import (
    DEVICE,
    DeviceScan,
    DeviceUser,
    has_accelerators,
    has_nvidia,
    scan_device_users,
)
from muster_checks.base.declaration import NodeView

OWN = 4000


class Node:
    """A root with /proc and /dev. The agent is process 4000."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.view = NodeView(root)
        (root / "dev").mkdir()
        self.process(2, "kthreadd", parent=0)
        self.process(1, "systemd", parent=0)
        self.process(OWN, "muster", parent=1)
        (root / "proc/self").symlink_to(str(OWN))

    def device(self, *names: str) -> None:
        for name in names:
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def process(self, pid: int, name: str, *opened: str, parent: int = 1, state: str = "S") -> Path:
        folder = self.root / "proc" / str(pid)
        files = folder / "fd"
        files.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name[:15]}) {state} {parent} {pid} {pid} 0 -1 4194560 1 0 0 0\n")
        for number, target in enumerate(("/dev/null", "socket:[4711]", *opened)):
            (files / str(number)).symlink_to(target)
        return folder

    def users(self) -> list[DeviceUser]:
        return list(scan_device_users(self.view, limit_s=60).users)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    "device",
    [
        "nvidia0",
        "nvidia15",
        "nvidia-uvm",
        "kfd",
        "dri/renderD128",
        "ipu3",
        "ipu3_mem",
        "accel0",
        "accel/accel0",
        "hl1",
        "neuron4",
        "davinci2",
    ],
)
def test_who_has_an_accelerator_open_uses_it(node: Node, device: str) -> None:
    node.device(device)
    node.process(5000, "python3", f"/dev/{device}")
    assert has_accelerators(node.view)
    assert node.users() == [DeviceUser(5000, "python3", f"/dev/{device}")]


@pytest.mark.parametrize(
    "device",
    ["nvidiactl", "nvidia-modeset", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "dri/card0", "ipu-psys0", "null"],
)
def test_other_devices_are_no_accelerators(node: Node, device: str) -> None:
    node.device(device)
    node.process(5000, "python3", f"/dev/{device}", f"/home/x/dev/{device}")
    assert not has_accelerators(node.view)
    assert node.users() == []


def test_a_device_that_was_unplugged_is_still_held(node: Node) -> None:
    node.process(5000, "python3", "/dev/nvidia0 (deleted)")
    assert node.users() == [DeviceUser(5000, "python3", "/dev/nvidia0")]


@pytest.mark.parametrize(
    "daemon",
    ["nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nv-fabricmanager", "nvidia-device-plugin"],
)
def test_a_daemon_that_only_looks_does_no_work(node: Node, daemon: str) -> None:
    node.process(5000, daemon, "/dev/nvidia0")
    assert node.users() == []


def test_what_the_agent_has_started_is_its_own_work(node: Node) -> None:
    node.process(5000, "bash", parent=OWN)
    node.process(5001, "nccl-tests", "/dev/nvidia0", parent=5000)
    node.process(5002, "python3", "/dev/nvidia0", parent=1)
    assert node.users() == [DeviceUser(5002, "python3", "/dev/nvidia0")]


def test_what_dcgm_has_started_is_a_diagnosis(node: Node) -> None:
    node.process(900, "nv-hostengine", "/dev/nvidia0")
    node.process(5000, "nvvs", "/dev/nvidia-uvm", parent=900)
    assert node.users() == [DeviceUser(5000, "nvvs", "/dev/nvidia-uvm", diagnosis=True)]


def test_without_a_number_of_its_own_the_agent_owns_nothing(node: Node) -> None:
    (node.root / "proc/self").unlink()
    node.process(5000, "python3", "/dev/nvidia0", parent=OWN)
    assert node.users() == [DeviceUser(5000, "python3", "/dev/nvidia0")]


def test_a_name_may_hold_anything(node: Node) -> None:
    node.process(5000, "a) S 4000 (\n", "/dev/nvidia0")
    assert node.users() == [DeviceUser(5000, "a) S 4000 (?", "/dev/nvidia0")]


def test_a_circle_of_parents_ends(node: Node) -> None:
    node.process(5000, "a", "/dev/nvidia0", parent=5001)
    node.process(5001, "b", parent=5000)
    assert [user.pid for user in node.users()] == [5000]


@pytest.mark.parametrize("stat", ["", "garbage", "5000 (x", "5000 (x) S", "5000 (x) S minus", "\x00\xff"])
def test_a_process_without_a_readable_stat_is_still_seen(node: Node, stat: str) -> None:
    node.process(5000, "x", "/dev/nvidia0")
    (node.root / "proc/5000/stat").write_text(stat, encoding="latin-1")
    assert node.users() == [DeviceUser(5000, "?", "/dev/nvidia0")]


def test_a_process_that_has_just_ended_is_none(node: Node) -> None:
    (node.root / "proc/5000").mkdir()
    (node.root / "proc/5001").symlink_to("gone")
    sight = scan_device_users(node.view, limit_s=60)
    assert (sight.users, sight.unreadable) == ((), 0)


def test_a_machine_differs_from_a_container(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not scan_device_users(node.view, limit_s=60).hidden
    (tmp_path / "proc/2/stat").write_text("2 (sleep) S 1 2 2 0 -1 0")
    assert scan_device_users(node.view, limit_s=60).hidden


def test_a_root_without_processes_hides_them(tmp_path: Path) -> None:
    sight = scan_device_users(NodeView(tmp_path), limit_s=60)
    assert sight.hidden
    assert sight.users == ()


def test_a_look_is_cut_short_in_time(node: Node) -> None:
    for pid in range(5000, 5010):
        node.process(pid, "python3", "/dev/nvidia0")
    ticks = iter(range(1000))
    sight = scan_device_users(node.view, limit_s=5, clock=lambda: float(next(ticks)))
    assert sight.cut_short
    assert len(sight.users) < 10


@pytest.mark.parametrize(
    ("there", "nvidia"), [("dev/nvidia0", True), ("sys/module/nvidia/x", True), ("dev/kfd", False)]
)
def test_a_driver_shows_devices_that_the_agent_s_container_has_not(tmp_path: Path, there: str, nvidia: bool) -> None:
    assert not has_accelerators(NodeView(tmp_path))
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).touch()
    assert has_accelerators(NodeView(tmp_path))
    assert has_nvidia(NodeView(tmp_path)) is nvidia


# --- real processes: /proc is this machine's, the device a plain file under the root


@pytest.fixture
def real(tmp_path: Path) -> NodeView:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "proc").symlink_to("/proc")
    return NodeView(tmp_path)


HOLD = "import sys; held = open(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def child(real: NodeView) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", HOLD, str(real.path("/dev/nvidia0"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def of(view: NodeView, sight: DeviceScan) -> list[DeviceUser]:
    assert not sight.cut_short
    return [user for user in sight.users if DEVICE.fullmatch(user.device)]


def test_a_real_child_of_ours_is_no_user(real: NodeView, child: "subprocess.Popen[str]") -> None:
    assert of(real, scan_device_users(real, limit_s=60)) == []


# what the agent would see from where it is no ancestor
SEE = """
import sys
from pathlib import Path
from muster_agent.idle.device_users import scan_device_users
from muster_checks.base.declaration import NodeView
for user in scan_device_users(NodeView(Path(sys.argv[1])), limit_s=60).users:
    print(user.pid, user.name, user.device)
"""


def test_a_real_process_of_another_is_seen(real: NodeView, child: "subprocess.Popen[str]") -> None:
    name = Path(f"/proc/{child.pid}/comm").read_text().strip()
    seen = subprocess.run([sys.executable, "-c", SEE, str(real.root)], capture_output=True, text=True, check=True)
    assert f"{child.pid} {name} /dev/nvidia0" in seen.stdout.splitlines()


@needs("root")  # which has rights to drop
def test_processes_of_others_are_counted_where_they_may_not_be_looked_into(
    real: NodeView, child: "subprocess.Popen[str]"
) -> None:
    program = (
        "import os, sys; from pathlib import Path; from muster_agent.idle.device_users import scan_device_users;"
        "from muster_checks.base.declaration import NodeView; import muster_checks.base.bounded_read;"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534);"
        "sight = scan_device_users(NodeView(Path('/')), limit_s=60); print(sight.users, sight.unreadable > 0)"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout == "() True\n"

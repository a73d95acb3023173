"""A file system that stops is a reason to reboot the node only if the node needs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_checks.disk.folders import follow_links, node_links
from muster_checks.dmesg.node_disks import KEPT_S, node_disks
from muster_checks.testing.recorded import lay_out, node

CSI = "/var/lib/kubelet/plugins/kubernetes.io/csi/rbd/volume"
MOUNTS = f"""\
27 1 9999:1 / / rw - ext4 /dev/vda1 rw
28 27 9999:2 / /var/lib rw - xfs /dev/dm-0 rw
29 27 9999:3 / /scratch rw - ext4 /dev/nvme1n1 rw
30 27 9999:4 / {CSI} rw - xfs /dev/rbd0 rw
31 27 9999:4 / /var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/x/mount rw - xfs /dev/rbd0 rw
32 27 9999:5 / /image rw - ext4 /dev/loop0 rw
"""
IN_A_CONTAINER = """\
27 1 0:99 / / rw - overlay overlay rw
28 27 9999:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/vda1 rw
"""
LINES = {
    "FilesystemReadOnly": (
        "EXT4-fs ({}): Remounting filesystem read-only",
        "BTRFS info (device {}: state E): forced readonly",
    ),
    "XfsShutdown": (
        "XFS ({}): Corruption of in-memory data (0x8) detected at x. Shutting down filesystem.",
        "XFS ({}): Filesystem has been shut down due to log error (0x2).",
    ),
}
CASES = [
    *(("vda1", True), ("dm-0", True)),
    *((disk, False) for disk in ("nvme1n1", "rbd0", "loop0", "loop7", "sdz")),
]


@pytest.fixture
def judged(tmp_path: Any, new_bench: Callable[..., Any], summarize: Any) -> Callable[[str], Any]:
    bench = new_bench(of_node_disk=node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS}))))
    return lambda text: summarize(bench.feed(text))


@pytest.mark.parametrize(("disk", "needed"), CASES)
@pytest.mark.parametrize(("reason", "line"), [(reason, line) for reason, lines in LINES.items() for line in lines])
def test_only_a_disk_that_the_node_needs_asks_for_a_reboot(
    disk: str, needed: bool, reason: str, line: str, judged: Callable[[str], Any]
) -> None:
    fails = (f"disk/{disk}", reason, "FAIL", "reboot")
    warns = (f"disk/{disk}", "VolumeReadOnly", "WARN", "contact")
    assert judged(line.format(disk)) == [fails if needed else warns]


@pytest.mark.parametrize("mounts", ["", IN_A_CONTAINER], ids=["no mounts", "a container's mounts"])
def test_in_doubt_a_disk_is_one_of_the_node_s_but_a_loop_device_never_is(mounts: str, tmp_path: Any) -> None:
    is_needed = node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": mounts})))
    assert [is_needed(disk) for disk in ("sda1", "dm-3", "loop0")] == [True, True, False]


def test_a_message_without_the_disk_s_name_fails_as_before(judged: Callable[[str], Any]) -> None:
    assert judged("Remounting filesystem read-only") == [("host", "FilesystemReadOnly", "FAIL", "reboot")]


def test_the_mounts_are_read_again_after_a_while(tmp_path: Any) -> None:
    now = [0.0]
    is_needed = node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS})), clock=lambda: now[0])
    assert not is_needed("sdz")
    lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS + "33 27 9999:6 / /var/log rw - ext4 /dev/sdz rw\n"})
    assert not is_needed("sdz")
    now[0] += KEPT_S
    assert is_needed("sdz")


def link(root: Path, path: str, target: str) -> None:
    """``path`` on the node with its files under ``root`` leads to ``target``."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


BTRFS_ROOT = "27 1 0:31 /@ / rw - btrfs {} rw\n29 27 9999:3 / /scratch rw - ext4 /dev/nvme1n1 rw\n"


@pytest.mark.parametrize("target", ["../dm-0", "/dev/dm-0"])
def test_a_disk_without_a_number_of_its_own_is_found_by_udev_s_link(target: str, tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, {"/proc/1/mountinfo": BTRFS_ROOT.format("/dev/mapper/vg-root"), "/dev/dm-0": ""}))
    link(tmp_path, "/dev/mapper/vg-root", target)
    is_needed = node_disks(view)
    assert [is_needed(disk) for disk in ("dm-0", "dm-1", "nvme1n1")] == [True, False, False]


@pytest.mark.parametrize("source", ["/dev/root", "/dev/mapper/vg-root", "/dev/vg/root"])
def test_if_the_name_of_the_node_s_disk_is_unknown_it_may_be_any_without_another_use(
    source: str, tmp_path: Path
) -> None:
    is_needed = node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": BTRFS_ROOT.format(source)})))
    assert [is_needed(disk) for disk in ("vda1", "dm-0", "nvme1n1", "loop0")] == [True, True, False, False]


def test_a_pool_of_zfs_is_no_disk_of_the_kernel_log(tmp_path: Path) -> None:
    mounts = "27 1 0:31 / / rw - zfs rpool/ROOT rw\n28 27 9999:2 / /var rw - ext4 /dev/vda1 rw\n"
    is_needed = node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": mounts})))
    assert [is_needed(disk) for disk in ("vda1", "rbd0")] == [True, False]


def test_the_kernel_may_name_any_disk_of_a_btrfs(tmp_path: Path) -> None:
    devices = "/sys/fs/btrfs/3f2a/devices"
    files = {"/proc/1/mountinfo": BTRFS_ROOT.format("/dev/sda2"), f"{devices}/sda2": "", f"{devices}/sdb2": ""}
    is_needed = node_disks(node(lay_out(tmp_path, files)))
    assert [is_needed(disk) for disk in ("sda2", "sdb2", "sdc2")] == [True, True, False]


@pytest.mark.parametrize("folder", ["/var/lib/rancher", "/var/lib/etcd"])
def test_the_folders_of_kubernetes_are_needed(folder: str, tmp_path: Path) -> None:
    mounts = f"{MOUNTS}33 28 9999:6 / {folder} rw - ext4 /dev/sdz rw\n"
    assert node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": mounts})))("sdz")


@pytest.mark.parametrize("root", ["", "/proc/1/root"])
@pytest.mark.parametrize("target", ["/scratch/kubelet", "../../scratch/kubelet", "/scratch/gone/../kubelet"])
def test_a_disk_that_a_link_leads_to_is_needed(root: str, target: str, tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS}))
    link(tmp_path, f"{root}/var/lib/kubelet", target)
    assert [node_disks(view)(disk) for disk in ("nvme1n1", "rbd0")] == [True, False]
    assert node_links(tmp_path)["/var/lib/kubelet"] == "/scratch/kubelet"


def test_links_without_end_and_names_of_no_file_are_not_followed(tmp_path: Path) -> None:
    link(tmp_path, "/a", "/b")
    link(tmp_path, "/b", "a")
    assert [follow_links(tmp_path, path) for path in ("/a/x", "/\0", "/gone/x")] == ["/a/x", "/\0", "/gone/x"]

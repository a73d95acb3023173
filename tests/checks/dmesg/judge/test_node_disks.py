"""A file system that stops is a reason to reboot the node only if the node needs it."""

from collections.abc import Callable
from typing import Any

import pytest

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
    is_needed = node_disks(node(lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS})), lambda: now[0])
    assert not is_needed("sdz")
    lay_out(tmp_path, {"/proc/1/mountinfo": MOUNTS + "33 27 9999:6 / /var/log rw - ext4 /dev/sdz rw\n"})
    assert not is_needed("sdz")
    now[0] += KEPT_S
    assert is_needed("sdz")

"""The check ``disk``: file systems that are read-only, full, or do not answer."""

import asyncio
import errno
import functools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, mangled
from tests.polling import thread_did

from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import FaultClass, Finding, Result, Verdict
from muster_checks.disk import DISK, NODE_PATHS, DiskParameters
from muster_checks.disk.judge import judge_filesystem
from muster_checks.disk.mounts import Filesystem, find_serving_mount, group_filesystems, parse_mountinfo
from muster_checks.disk.probe import probe
from muster_checks.disk.space import DiskSpace, SpaceReader, read_space
from muster_checks.testing.recorded import lay_out, node

SAMPLES = Path(__file__).parent / "samples"
NODE = (SAMPLES / "mountinfo_node.txt").read_text()
STOPPED = (SAMPLES / "mountinfo_stopped.txt").read_text()
ROOT = Filesystem("nvme0n1p2", "259:2", "ext4", ("/",), stopped=False)
GIB = 1 << 30


async def run(root: Path, mountinfo: str, **parameters: Any) -> Result:
    return await run_probe(DISK, node(lay_out(root, {"/proc/1/mountinfo": mountinfo})), DiskParameters(**parameters))


def here(root: Path, options: str = "rw", above: str = "rw", kind: str = "ext4") -> str:
    """A mount of the file system that the test's folder lies on."""
    device = root.stat().st_dev
    return f"27 1 {os.major(device)}:{os.minor(device)} / / {above},relatime shared:1 - {kind} /dev/vda1 {options}"


def judged(space: DiskSpace | None, *, needed: bool = True, error: OSError | None = None) -> list[Finding]:
    return judge_filesystem(ROOT, space, error, needed, DiskParameters())


def names(root: Path, mountinfo: str) -> dict[str, bool]:
    """Each file system and whether it was stopped."""
    return {fs.name: fs.stopped for fs in group_filesystems(node(root), parse_mountinfo(mountinfo))}


def test_only_local_file_systems_that_can_be_written_and_are_the_nodes_are_looked_at(tmp_path: Path) -> None:
    found = group_filesystems(node(tmp_path), parse_mountinfo(NODE))
    assert {fs.name: fs.point for fs in found} == {
        "nvme0n1p2": "/",
        "nvme0n1p1": "/boot/efi",
        "mapper/data-var": "/var/lib",
        "md0": "/scratch space",
        "sdb": "/data",
    }
    assert not any(fs.stopped for fs in found)


def test_a_file_system_goes_by_its_block_device_as_in_the_kernel_log(tmp_path: Path) -> None:
    lay_out(tmp_path, {"/sys/devices/virtual/block/dm-0/dev": "253:0"})
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/253:0").symlink_to("../../devices/virtual/block/dm-0")
    assert "dm-0" in names(tmp_path, NODE)


@pytest.mark.parametrize(
    ("line", "stopped"),
    [
        *((line, True) for line in STOPPED.splitlines()),
        ("27 1 8:1 / / rw - ext4 /dev/sda1 ro,errors=remount-ro", True),
        ("27 1 8:1 / / rw - ext4 /dev/sda1 rw,shutdown", True),
        ("27 1 0:31 /@ / rw - btrfs /dev/sda1 ro,subvolid=256", True),
        ("27 1 8:1 / / ro - ext4 /dev/sda1 ro", False),
        ("27 1 8:1 / / ro - ext4 /dev/sda1 rw", False),
        ("27 1 8:1 /etc /etc rw - ext4 /dev/sda1 ro", False),
        ("27 1 8:1 / /usr ro - ext4 /dev/sda1 ro\n28 1 8:1 /bin /x/bin rw - ext4 /dev/sda1 ro", False),
        ("27 1 8:1 / /usr ro - ext4 /dev/sda1 ro\n28 1 8:1 / /x rw - ext4 /dev/sda1 ro", False),
    ],
)
def test_a_file_system_stopped_by_an_error_is_told_from_one_mounted_read_only(
    tmp_path: Path, line: str, stopped: bool
) -> None:
    assert list(names(tmp_path, line).values()) == [stopped]


def test_types_that_can_only_be_read_are_left_alone(tmp_path: Path) -> None:
    mounted = "27 1 7:1 / /snap rw - squashfs /dev/loop1 ro\n28 1 7:2 / /iso rw - iso9660 /dev/sr0 ro"
    assert names(tmp_path, mounted) == {}


def test_volumes_of_pods_are_left_alone(tmp_path: Path) -> None:
    line = "27 1 8:1 / /var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/x/mount rw - ext4 /dev/sdx ro"
    assert names(tmp_path, line) == {}


async def test_a_stopped_file_system_fails_and_asks_for_a_reboot(tmp_path: Path) -> None:
    result = await run(tmp_path, here(tmp_path, options="ro"))
    [finding] = [finding for finding in result.findings if finding.verdict is Verdict.FAIL]
    assert (finding.reason, finding.fault_class) == ("FilesystemReadOnly", FaultClass.REBOOT)
    assert finding.component.startswith("disk/")


async def test_a_stopped_file_system_that_the_node_does_not_need_is_no_reason_to_reboot(tmp_path: Path) -> None:
    scratch = "28 1 9999:9 / /scratch rw - ext4 /dev/sdx rw,shutdown"
    findings = (await run(tmp_path, f"{here(tmp_path)}\n{scratch}")).findings
    [finding] = [finding for finding in findings if finding.component == "disk/sdx"]
    assert (finding.reason, finding.verdict, finding.fault_class) == (
        "VolumeReadOnly",
        Verdict.WARN,
        FaultClass.CONTACT,
    )
    # without any of the node's own folders, these are not the node's mounts
    (alone,) = (await run(tmp_path, scratch)).findings
    assert (alone.reason, alone.verdict) == ("FilesystemReadOnly", Verdict.FAIL)


async def test_a_file_system_that_the_node_needs_by_a_link_is_a_reason_to_reboot(tmp_path: Path) -> None:
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/kubelet").symlink_to("/data/kubelet")
    result = await run(tmp_path, f"{here(tmp_path)}\n28 1 9999:9 / /data rw - ext4 /dev/sdx rw,shutdown")
    assert [f.reason for f in result.findings if f.component == "disk/sdx"] == ["FilesystemReadOnly"]


async def test_a_real_file_system_passes_with_its_space(tmp_path: Path) -> None:
    result = await run(tmp_path, here(tmp_path), min_free_percent=0, min_free_inodes_percent=0)
    assert result.verdict is Verdict.PASS
    assert [m.name for m in result.findings[0].measurements][:2] == ["free", "free_space"]
    assert result.findings[0].measurements[0].value > 0


async def test_a_file_system_that_is_not_visible_from_here_is_judged_by_its_mount_alone(tmp_path: Path) -> None:
    result = await run(tmp_path, "27 1 9999:9 / / rw - ext4 /dev/sda1 rw\n28 1 9998:9 / /gone rw - xfs /dev/sdb1 rw")
    assert [(f.component, f.verdict) for f in result.findings] == [
        ("disk/sda1", Verdict.PASS),
        ("disk/sdb1", Verdict.PASS),
    ]
    assert "not visible" in result.findings[0].message


async def test_small_file_systems_of_the_boot_are_not_asked_for_space(tmp_path: Path) -> None:
    result = await run(tmp_path, here(tmp_path, kind="vfat").replace("/ / ", "/ /boot/efi "), min_free_percent=100)
    assert result.verdict is Verdict.PASS


async def test_without_a_disk_there_is_nothing_to_do(tmp_path: Path) -> None:
    result = await run(tmp_path, "22 27 0:21 / /proc rw - proc proc rw")
    assert result.verdict is Verdict.SKIP


async def test_our_own_mounts_stand_in_where_the_first_process_is_hidden(tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, {"/proc/self/mountinfo": "27 1 9999:9 / / rw - ext4 /dev/sda1 rw,shutdown"}))
    assert (await run_probe(DISK, view, DiskParameters())).reason == "FilesystemReadOnly"


@pytest.mark.parametrize(
    ("space", "needed", "expected"),
    [
        (DiskSpace(10.0, 5.0, GIB), True, ("Ok", Verdict.PASS)),
        (DiskSpace(9.9, 50.0, GIB), True, ("SpaceLow", Verdict.WARN)),
        (DiskSpace(50.0, 4.9, GIB), True, ("InodesLow", Verdict.WARN)),
        (DiskSpace(50.0, None, GIB), True, ("Ok", Verdict.PASS)),
        (DiskSpace(0.0, 50.0, 0), True, ("DiskFull", Verdict.FAIL)),
        (DiskSpace(50.0, 0.0, GIB), True, ("DiskFull", Verdict.FAIL)),
        (DiskSpace(1.0, 1.0, GIB), False, ("Ok", Verdict.PASS)),
        (DiskSpace(0.0, 1.0, 0), False, ("DiskFull", Verdict.WARN)),
        (None, True, ("Ok", Verdict.PASS)),
    ],
)
def test_space(space: DiskSpace | None, needed: bool, expected: tuple[str, Verdict]) -> None:
    assert [(finding.reason, finding.verdict) for finding in judged(space, needed=needed)] == [expected]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), ("FilesystemError", Verdict.FAIL)),
        (TimeoutError(), ("NotReadable", Verdict.UNKNOWN)),
        (OSError(errno.ESTALE, "Stale file handle"), ("NotReadable", Verdict.UNKNOWN)),
        (OSError("odd"), ("NotReadable", Verdict.UNKNOWN)),
    ],
)
def test_a_file_system_that_does_not_answer(error: OSError, expected: tuple[str, Verdict]) -> None:
    assert [(finding.reason, finding.verdict) for finding in judged(None, error=error)] == [expected]


def test_the_file_systems_that_the_node_needs_are_those_that_hold_its_folders() -> None:
    mounts = parse_mountinfo(NODE)
    assert find_serving_mount(mounts, NODE_PATHS.split(",")) == {"259:2", "253:0"}
    assert find_serving_mount(mounts, ["/scratch space/a", "/database", "/home/me"]) == {"259:5", "259:2", "0:50"}
    over_each_other = parse_mountinfo("1 1 8:1 / / rw - ext4 a rw\n2 1 8:2 / / rw - ext4 b rw")
    assert find_serving_mount(over_each_other, ["/"]) == {"8:2"}
    assert find_serving_mount([], ["/"]) == frozenset()


class Blocked:
    """A file system whose answer waits until it is told to come."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def __call__(self, places: list[Path], device: str) -> DiskSpace | None:
        self.asked += 1
        self.go.wait(30)
        return DiskSpace(50.0, None, GIB)


async def test_a_file_system_that_hangs_is_asked_once_until_it_answers(tmp_path: Path) -> None:
    blocked = Blocked()
    spaces, view = SpaceReader(blocked), node(tmp_path)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await spaces.ask(view, ROOT, timeout_s=0.01)
    await thread_did(lambda: blocked.asked)
    assert blocked.asked == 1
    blocked.go.set()
    for thread in threading.enumerate():
        if thread.name == "statvfs 259:2":
            thread.join()
    assert await spaces.ask(view, ROOT, timeout_s=30) == DiskSpace(50.0, None, GIB)
    assert blocked.asked == 2


async def test_two_runs_at_once_share_the_answer(tmp_path: Path) -> None:
    blocked = Blocked()
    spaces, view = SpaceReader(blocked), node(tmp_path)
    runs = [asyncio.create_task(spaces.ask(view, ROOT, timeout_s=limit_s)) for limit_s in (30, 20)]
    await thread_did(lambda: blocked.asked)
    blocked.go.set()
    assert await asyncio.gather(*runs) == [DiskSpace(50.0, None, GIB)] * 2
    assert blocked.asked == 1


async def test_a_run_that_begins_as_another_ends_asks_for_itself(tmp_path: Path) -> None:
    """The first one's thread has ended, and its task has not heard of that yet."""
    spaces, view = SpaceReader(lambda _places, _device: DiskSpace(50.0, None, GIB)), node(tmp_path)
    first = asyncio.create_task(spaces.ask(view, ROOT, timeout_s=30))
    await asyncio.sleep(0)
    for thread in threading.enumerate():
        if thread.name == "statvfs 259:2":
            thread.join()
    assert await asyncio.gather(first, spaces.ask(view, ROOT, timeout_s=30)) == [DiskSpace(50.0, None, GIB)] * 2


async def test_what_a_file_system_answers_reaches_the_verdict(tmp_path: Path) -> None:
    def broken(places: list[Path], device: str) -> DiskSpace | None:
        raise OSError(errno.EIO, "Input/output error")

    blocked = Blocked()
    view = node(lay_out(tmp_path, {"/proc/1/mountinfo": "27 1 8:1 / / rw - xfs /dev/sda1 rw"}))
    rows = ((SpaceReader(broken), 30.0, Verdict.FAIL), (SpaceReader(blocked), 0.01, Verdict.UNKNOWN))
    for spaces, limit_s, expected in rows:
        [finding] = await probe(view, DiskParameters(mount_timeout_s=limit_s), spaces)
        assert finding.verdict is expected
    blocked.go.set()


async def test_an_answer_after_the_end_of_the_program_is_lost_quietly() -> None:
    blocked = Blocked()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await SpaceReader(blocked).ask(node(Path("/")), ROOT, timeout_s=0.01)

    await asyncio.to_thread(asyncio.run, ask())
    blocked.go.set()
    for thread in threading.enumerate():
        if thread.name == "statvfs 259:2":
            thread.join()


def test_space_is_that_of_the_device_and_not_of_what_lies_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", functools.cache(os.statvfs))  # others write to the same file system meanwhile
    device = f"{os.major(tmp_path.stat().st_dev)}:{os.minor(tmp_path.stat().st_dev)}"
    assert read_space([tmp_path], "9999:9") is None
    assert read_space([tmp_path / "gone"], device) is None
    found = read_space([tmp_path / "gone", tmp_path], device)
    assert found is not None
    assert 0 < found.free_percent <= 100
    assert read_space([tmp_path], "0:77") == found  # btrfs numbers each folder anew
    assert read_space([Path("/proc")], "0:77") is None  # no blocks at all


@pytest.mark.parametrize("text", [*TEXTS, *mangled(NODE.encode())])
async def test_no_mountinfo_is_a_failure(tmp_path: Path, text: bytes) -> None:
    result = await run(tmp_path, text.decode("utf-8", "replace"))
    assert result.verdict is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(st.text() | st.lists(st.text(max_size=6), max_size=12).map(" ".join))
def test_any_text_can_be_parsed(text: str) -> None:
    find_serving_mount(parse_mountinfo(text + " - ext4 a b"), ["/"])

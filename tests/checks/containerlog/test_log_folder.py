"""Only folders and regular files below the log folder are opened, whatever somebody has put there."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_checks.containerlog.log_opener import NotALog, open_beneath

PARTS = ("pod", "main", "0.log")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pods/pod/main").mkdir(parents=True)
    (tmp_path / "pods/pod/main/0.log").write_text("log")
    (tmp_path / "outside/main").mkdir(parents=True)
    (tmp_path / "outside/main/0.log").write_text("secret")
    return tmp_path / "pods"


def read(root: Path, *parts: str) -> bytes:
    handle = open_beneath(root, parts)
    try:
        return os.read(handle, 100)
    finally:
        os.close(handle)


def test_a_log_and_a_folder(root: Path) -> None:
    assert read(root, *PARTS) == b"log"
    handle = open_beneath(root, PARTS[:2])
    assert os.listdir(handle) == ["0.log"]  # noqa: PTH208 - a descriptor, no path
    os.close(handle)


def test_the_folder_itself_may_be_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(link, *PARTS) == b"log"


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.rename(path.with_name("before"))
        make(path)

    return put


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path is short
        listener.bind(path.name)


OTHERS = {
    "an absolute link": replace_by(lambda path: path.symlink_to("/etc/hostname")),
    "a link upwards": replace_by(lambda path: path.symlink_to("../../../outside/main/0.log")),
    "a link within the folder": replace_by(lambda path: path.symlink_to("before")),
    "a link to itself": replace_by(lambda path: path.symlink_to(path.name)),
    "a fifo": replace_by(os.mkfifo),
    "a socket": replace_by(_socket),
    "a device": replace_by(lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))),  # /dev/zero
}


@pytest.mark.parametrize("other", OTHERS)
def test_anything_else_in_place_of_a_log_is_refused(root: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    try:
        OTHERS[other](root / "pod/main/0.log")
    except PermissionError:
        assert os.geteuid() != 0  # only root makes devices
        return
    with pytest.raises(NotALog):
        open_beneath(root, PARTS)


@pytest.mark.parametrize("part", ["pod", "pod/main"])
def test_a_link_in_place_of_a_folder_is_refused(root: Path, part: str) -> None:
    (root / part).rename(root / "before")
    (root / part).symlink_to(root.parent / "outside" if part == "pod" else root.parent / "outside/main")
    with pytest.raises(NotALog):
        open_beneath(root, PARTS)
    with pytest.raises(NotALog):
        open_beneath(root, part.split("/"))


@pytest.mark.parametrize(
    "parts",
    [
        ("..",),
        ("pod", "..", "pod"),
        ("pod", "main", ".."),
        (".",),
        ("",),
        ("pod/main",),
        ("/etc",),
        ("pod", "main", "0.log\0"),
        ("x" * 256,),
        ("pod", "main", "0.log", "deeper"),
    ],
)
def test_a_path_that_no_log_has_is_refused(root: Path, parts: tuple[str, ...]) -> None:
    with pytest.raises(NotALog):
        open_beneath(root, parts)


def test_what_does_not_exist_is_reported_as_such(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_beneath(root, ("other",))
    with pytest.raises(FileNotFoundError):
        open_beneath(root / "none", PARTS)


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names, no paths
    (root / "pod/main/1.log").symlink_to("0.log")
    for parts in (PARTS, ("pod", "main", "1.log"), ("pod", "none"), ("..",)):
        try:
            os.close(open_beneath(root, parts))
        except OSError:
            continue
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - names, no paths

"""A sandbox is found by its folder, and there is one at a time."""

import os
import re
from pathlib import Path

import pytest

from muster_sandbox.session.folder import MARKER, NoSandbox, SandboxFolder, SandboxNode, SandboxRecord, find_running

NODE = SandboxNode(name="sim-1", kmsg="/x/kmsg", root="/x", simulated=True)


def test_a_second_sandbox_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with SandboxFolder(tmp_path / "box"), pytest.raises(NoSandbox, match=re.escape(str(tmp_path / "box"))):
        SandboxFolder(tmp_path / "box").__enter__()


def test_the_folder_is_gone_at_the_end_and_what_a_killed_one_left_is_cleared_away(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    (box / MARKER).touch()
    (box / "left-over").touch()
    with SandboxFolder(box) as claim:
        assert not (box / "left-over").exists()
        claim.publish(SandboxRecord(pid=os.getpid(), kubeconfig="k", nodes=(NODE,)))
        assert find_running(box).node("sim-1") == NODE
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_no_sandbox_made_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letters").touch()
    with pytest.raises(NoSandbox, match=re.escape(str(tmp_path / "home"))):
        SandboxFolder(tmp_path / "home").__enter__()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["home", "letters"]


def test_what_is_no_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "file/below"):
        with pytest.raises(NoSandbox, match="MUSTER_SANDBOX"):
            SandboxFolder(tmp_path / name).__enter__()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_no_sandbox_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NoSandbox, match="make sandbox"):
        find_running(tmp_path)


def test_one_whose_process_is_gone_does_not_run(tmp_path: Path) -> None:
    with SandboxFolder(tmp_path / "box") as claim:
        claim.publish(SandboxRecord(pid=2**22 + 1, kubeconfig="k", nodes=(NODE,)))  # above the kernel's highest pid
        with pytest.raises(NoSandbox):
            find_running(claim.path)


def test_an_unknown_node_names_those_there_are() -> None:
    with pytest.raises(NoSandbox, match=r"'sim-9'.*sim-1"):
        SandboxRecord(pid=1, kubeconfig="k", nodes=(NODE,)).node("sim-9")

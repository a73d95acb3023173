"""Follows one container's files: rotation, restarts, truncation, floods and lines of any length."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.checks.containerlog.pod_folder import POD, ContainerFiles, cri

from muster_checks.containerlog import container_log
from muster_checks.containerlog.container_log import (
    BACKLOG_BYTES,
    KEPT_BYTES,
    LINE_BYTES,
    ContainerLog,
    Piece,
    find_time,
)
from muster_checks.containerlog.log_folder import FolderOpener

LONG_AGO = 0.0


class Follower:
    def __init__(self, root: Path, since: float = LONG_AGO) -> None:
        self.log = ContainerLog(FolderOpener(root), (POD, "main"), since)
        self.pieces: list[Piece] = []

    def texts(self) -> list[str]:
        """What is new, to the end."""
        begin = len(self.pieces)
        while not self.pieces[begin:] or self.pieces[-1].more:
            self.pieces.append(self.log.read())
        return [line.split(b" ", 3)[3].decode() for piece in self.pieces[begin:] for line in piece.lines]


@pytest.fixture
def files(tmp_path: Path) -> ContainerFiles:
    return ContainerFiles(tmp_path)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(tmp_path)
    yield follower
    follower.log.close()


def test_lines_are_read_once_and_without_a_newline_not_yet(files: ContainerFiles, follower: Follower) -> None:
    assert follower.texts() == []  # no file yet
    files.print("a", "b")
    with files.current.open("a") as file:
        file.write(cri("half", files.now).rstrip("\n"))
        file.flush()
        assert follower.texts() == ["a", "b"]
        file.write("\n")
    assert follower.texts() == ["half"]
    assert follower.texts() == []


def test_a_rotated_file_is_read_to_its_end_before_its_successor(files: ContainerFiles, follower: Follower) -> None:
    files.print("a")
    assert follower.texts() == ["a"]
    files.print("b")
    files.rotate()
    files.print("c")
    assert follower.texts() == ["b", "c"]


def test_the_end_of_a_file_that_was_compressed_meanwhile_is_read(files: ContainerFiles, follower: Follower) -> None:
    files.print("a")
    assert follower.texts() == ["a"]
    files.print("b")
    files.rotate()
    files.compress()
    files.print("c")
    assert follower.texts() == ["b", "c"]
    assert sum(piece.missed for piece in follower.pieces) == 0


def test_a_file_that_was_compressed_before_it_was_opened_is_reported(files: ContainerFiles, follower: Follower) -> None:
    files.print("a")
    assert follower.texts() == ["a"]
    files.rotate()
    files.print("b")
    files.rotate()
    files.print("c")
    files.rotate()
    files.print("d")
    assert follower.texts() == ["c", "d"]
    assert sum(piece.missed for piece in follower.pieces) == 1


def test_a_restarted_container_has_another_file(files: ContainerFiles, follower: Follower) -> None:
    files.print("a")
    assert follower.texts() == ["a"]
    files.print("b")
    files.restart_container()
    files.print("c")
    assert follower.texts() == ["b", "c"]


def test_a_file_system_that_lists_other_inodes_than_it_reports_repeats_nothing(
    files: ContainerFiles, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As overlayfs may."""
    found = ContainerLog._files

    def other_inodes(log: ContainerLog) -> object:
        plain, compressed = found(log)
        return [(key, name, inode + 1) for key, name, inode in plain], compressed

    monkeypatch.setattr(ContainerLog, "_files", other_inodes)
    files.print("a")
    assert [follower.texts() for _ in range(3)] == [["a"], [], []]
    files.print("b")
    files.restart_container()
    files.print("c")
    assert set(follower.texts()) == {"b", "c"}


def test_a_truncated_file_is_read_from_its_beginning(files: ContainerFiles, follower: Follower) -> None:
    files.print("a", "b")
    follower.texts()
    files.current.write_text("")
    files.print("c")
    assert follower.texts() == ["c"]


def test_files_of_before_are_passed_over(files: ContainerFiles, tmp_path: Path) -> None:
    files.print(*(f"old {n}" for n in range(2000)))
    os.utime(files.current, (1_800_000_000.0, 1_800_000_000.0))
    files.rotate()
    files.now += 10_000
    files.print(*(f"older {n:060}" for n in range(3000)))
    since = files.now
    files.print("new")
    follower = Follower(tmp_path, since)
    texts = follower.texts()
    assert texts[-1] == "new"
    assert not any(text.startswith("old ") for text in texts)
    assert len(texts) < 1500  # the rest comes with times, by which the reader leaves it out
    assert all(piece.old for piece in follower.pieces if piece.lines)
    files.print("newer")
    assert follower.texts() == ["newer"]
    assert not follower.pieces[-2].old
    follower.log.close()


def test_a_file_without_times_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"no time at all\n" * 20_000)
    with path.open("rb") as file:
        assert find_time(file.fileno(), path.stat().st_size, 1e9) == 0


@pytest.mark.parametrize("lines", [1, 8_000])
def test_the_time_is_found_at_most_two_chunks_early(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "f"
    path.write_text("".join(cri(f"line {n}", 1_000_000.0 + n) for n in range(lines)))
    with path.open("rb") as file:
        for wanted in (0, lines // 3, lines - 1):
            offset = find_time(file.fileno(), path.stat().st_size, 1_000_000.0 + wanted)
            text = path.read_bytes()
            assert offset == 0 or text[offset - 1 : offset] == b"\n"
            assert text.index(f"line {wanted}\n".encode()) - offset <= 3 * container_log.CHUNK_BYTES
            assert offset <= text.index(f"line {wanted}\n".encode())


def test_a_line_without_end_is_bounded(files: ContainerFiles, follower: Follower) -> None:
    with files.current.open("w") as file:
        file.write(cri("x" * 1_000_000, files.now))
    files.print("next")
    assert [len(text) <= LINE_BYTES for text in follower.texts()] == [True, True]
    assert sum(piece.overlong for piece in follower.pieces) == 1
    files.print("after")
    assert follower.texts() == ["after"]


def test_of_a_flood_only_the_newest_part_is_read_and_the_rest_reported(
    files: ContainerFiles, follower: Follower
) -> None:
    files.print("a")
    assert follower.texts() == ["a"]
    begun = files.current.stat().st_size
    with files.current.open("r+") as file:
        file.truncate(BACKLOG_BYTES + 3 * KEPT_BYTES)  # no blocks on the disk
        file.seek(0, os.SEEK_END)
        file.write("\n" + cri("last", files.now))
    assert follower.texts() == ["last"]
    skipped = sum(piece.skipped for piece in follower.pieces)
    assert skipped == files.current.stat().st_size - KEPT_BYTES - begun


class Rotations(RuleBasedStateMachine):
    """Every line is read once and in order, whenever files are rotated, compressed, or a container restarts, provided
    that the files are looked at between two rotations."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        root = Path(self._folder.name)
        self.files = ContainerFiles(root)
        self.follower = Follower(root)
        self.printed = self.read = 0
        self.rotated = False

    @rule(count=st.integers(1, 400))
    def print(self, count: int) -> None:
        self.files.print(*(str(self.printed + n) for n in range(count)))
        self.printed += count

    @rule()
    def rotate(self) -> None:
        if not self.rotated and self.files.current.exists():
            self.files.rotate()
            self.rotated = True

    @rule()
    def restart(self) -> None:
        if self.files.current.exists():
            self.files.restart_container()

    @rule()
    def compress(self) -> None:
        if not self.rotated:
            self.files.compress()

    @rule()
    def look(self) -> None:
        for text in self.follower.texts():
            assert int(text) == self.read
            self.read += 1
        assert self.read == self.printed
        self.rotated = False

    @invariant()
    def one_file_is_open(self) -> None:
        assert not any(piece.missed or piece.skipped for piece in self.follower.pieces)

    def teardown(self) -> None:
        self.look()
        self.follower.log.close()
        self._folder.cleanup()


TestRotations = Rotations.TestCase
TestRotations.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)

"""A pod with a writable hostPath below /var/log replaces log files and folders while they are opened.

It succeeds if the reader gets a descriptor of anything else than a log, once in many tries.
"""

import errno
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster_checks.containerlog.log_opener import NotALog, open_beneath

TRIES = 200  # of each outcome
GUARD_S = 60.0
PARTS = ("ml_train-0_uid", "main", "0.log")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The log folder, and a place outside with the same names."""
    for name, text in (("pods", "log"), ("outside", "secret")):
        (tmp_path / name / PARTS[0] / PARTS[1]).mkdir(parents=True)
        tmp_path.joinpath(name, *PARTS).write_text(text)
    return tmp_path / "pods", tmp_path / "outside"


# the attacker, another process: what lies at the two paths changes places, as one step (renameat2(2))
ATTACK = """
import ctypes, os, sys
libc, here, exchange = ctypes.CDLL(None, use_errno=True), -100, 2
true, other = map(os.fsencode, sys.argv[1:])
print("begun", flush=True)
while libc.renameat2(here, true, here, other, exchange) == 0:
    pass
"""


@contextmanager
def attack(true: Path, other: Path) -> Iterator[None]:
    words = [sys.executable, "-S", "-c", ATTACK, str(true), str(other)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline()
        try:
            yield
        finally:
            attacker.kill()


class Victim:
    """Opens the log again and again, until it has been opened and refused often enough."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: Counter[bytes] = Counter()
        self.failed: Counter[type[OSError]] = Counter()

    def tries(self) -> Iterator[None]:
        until = time.monotonic() + GUARD_S
        while min(self.read.total(), self.failed[NotALog]) < TRIES and time.monotonic() < until:
            try:
                handle = open_beneath(self.folder, PARTS)
            except OSError as error:
                self.failed[type(error)] += 1
            else:
                self.read[os.read(handle, 10)] += 1
                os.close(handle)
            yield


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_race_leads_out_of_the_folder(folders: tuple[Path, Path], depth: int) -> None:
    """A link and the true thing change places."""
    inside, outside = folders
    true = inside.joinpath(*PARTS[:depth])
    link = true.with_name("link")
    link.symlink_to(outside.joinpath(*PARTS[:depth]))
    victim = Victim(inside)
    with attack(true, link):
        for _ in victim.tries():
            assert victim.read.keys() <= {b"log"}
    assert victim.read.total() >= TRIES
    assert victim.failed[NotALog] >= TRIES  # the attack took place


def test_no_race_has_a_pipe_opened(folders: tuple[Path, Path]) -> None:
    """Who writes to a pipe without waiting is told if nobody has it open for reading."""
    inside, _ = folders
    true = inside.joinpath(*PARTS)
    pipe = true.with_name("pipe")
    os.mkfifo(pipe)
    watched = os.open(pipe, os.O_PATH)
    victim = Victim(inside)
    with attack(true, pipe):
        for _ in victim.tries():
            with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
                os.close(os.open(f"/proc/self/fd/{watched}", os.O_WRONLY | os.O_NONBLOCK))
    os.close(watched)
    assert victim.read.keys() == {b"log"}
    assert victim.failed[NotALog] >= TRIES

"""`muster`: how it ends."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from muster_cli.__main__ import main


def usage_code(*words: str) -> int:
    """Its exit code, from either way out of the command line's parser."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


@pytest.mark.parametrize(
    "words",
    [
        ["explain", ""],
        ["explain", ".."],
        ["explain", "ipujob"],
        ["explain", "n1", "team/job"],
        ["clear", "a/b"],
        ["clear", "x?y"],
        ["clear", "Upper"],
        ["sandbox", "--simulated", "-1"],
        ["sandbox", "--for", "nan"],
        ["sandbox", "--for", "-1"],
        ["sandbox", "--policy", "/nonexistent"],
        ["tainter", "--bogus"],
        ["nothing"],
        [],
    ],
)
def test_wrong_words_are_a_usage_error(words: list[str]) -> None:
    assert usage_code(*words) == 64


def test_the_tainters_own_module_has_the_same_usage_code() -> None:
    done = subprocess.run([sys.executable, "-m", "muster_tainter", "--bogus"], capture_output=True, check=False)
    assert done.returncode == 64


def test_invalid_policy_is_reported_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rulez: []")
    assert usage_code("sandbox", "--policy", str(policy)) == 64
    error = capsys.readouterr().err
    assert error.startswith("muster: ")
    assert "policy.yaml: rulez: " in error


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "muster_cli", "checks"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def unread_bytes(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_interrupt_gets_no_traceback(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    command = [sys.executable, "-m", "muster_cli", "explain", "n1", "--kubeconfig", str(tmp_path / "log")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with process, (tmp_path / "log").open("wb", buffering=0) as log:
        log.write(b"#")
        while unread_bytes(log):  # it is in the middle of reading: it has come to its work
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")

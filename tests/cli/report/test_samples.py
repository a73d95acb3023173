"""What `muster check --sample` takes for which kind of file."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.dmesg.sources.text_formats import has_kernel_line
from muster_cli.__main__ import main

OFF_THE_BUS = b"[ 1843.308145] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe<\0?\0x\0m\0l\0",
        bytes(5000),
        b"code,action\n79,RESET\n",
        b"[" * 100_000,
        b"usage: nvidia-smi [-h]\n",
    ],
    ids=["empty", "UTF-16", "zeros", "table", "deep", "help text"],
)
def test_what_is_no_kernel_log_is_unknown_and_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(content)
    assert main(["check", "--sample", str(sample)]) == 3
    assert "NotASample" in capsys.readouterr().out


@pytest.mark.parametrize("text", [OFF_THE_BUS, OFF_THE_BUS.partition(b"] ")[2]], ids=["with a time", "bare"])
def test_a_kernel_log_may_come_through_a_pipe(tmp_path: Path, text: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert main(["check", "--sample", str(pipe)]) == 2
    writer.join()


def test_a_long_kernel_log_is_read_as_one(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_bytes(OFF_THE_BUS + b"[ 1843.400000] usb 1-1: new high-speed device\n" * 120_000)
    assert main(["check", "--sample", str(log)]) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"6,4004,9184121699,-;text",
        b"<6>text",
        b"[    1.2] text",
        b"<3>[ 1843.308145] text",
        b"[Thu Nov 20 03:42:11 2025] text",
        b"2025-11-20T03:42:11,123456+00:00 text",
        b"Nov 20 03:42:11 host kernel: [ 12.3] text",
    ],
)
def test_a_kernel_log_is_known_by_one_line_of_any_form(line: bytes) -> None:
    assert has_kernel_line(b"saved by hand\n" + line + b"\n")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(noise: bytes) -> None:
    assert has_kernel_line(noise) in (True, False)

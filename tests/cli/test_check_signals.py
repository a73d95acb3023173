"""`muster check` that is ended from outside leaves no tool behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_tools_it_has_started_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    started, lifeline = tmp_path / "started", tmp_path / "lifeline"
    for pipe in (started, lifeline):
        os.mkfifo(pipe)
    tool = tmp_path / "chronyc"
    # it and its child hold the lifeline open for as long as they live
    tool.write_text(f"#!/bin/sh\nexec 3> {lifeline}\nsleep 600 &\necho > {started}\nsleep 600\n")
    tool.chmod(0o755)
    held = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    # a background job of a shell without job control has SIGINT ignored, one under nohup SIGHUP: both are handed on
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from muster_cli.__main__ import main; sys.exit(main(['check', 'clock', '--set', 'clock.timeout_s=30']))"
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) as running:
        started.read_bytes()
        assert running.stderr is not None
        assert b"clock" in running.stderr.readline()
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    # the end of a pipe: nobody who could write is left
    assert select.select([held], [], [], 60)[0]
    assert os.read(held, 1) == b""
    os.close(held)


def test_whoever_asks_for_all_checks_hears_of_those_that_read_the_file(tmp_path: Path) -> None:
    from muster_cli.__main__ import main

    log = tmp_path / "dmesg.txt"
    log.write_text("[ 1.0] usb 1-1: new device\n")
    assert main(["check", "all", "--sample", str(log)]) == 0

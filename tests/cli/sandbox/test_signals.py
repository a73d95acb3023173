"""Signals that end a sandbox."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_cli.sandbox.interruption import Interruption

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Stands in for the cluster: each stage says that it has begun, and takes a while to end.
SANDBOX = """
import asyncio, sys, time
from muster_cli.sandbox.up import run_until_interrupted

def stage(name):
    print(name, flush=True)

async def cluster():
    try:
        stage("up")
        await asyncio.sleep(60)
    finally:
        stage("stopping the parts")
        await asyncio.to_thread(time.sleep, 0.1)
        await asyncio.sleep(0.1)
        stage("parts stopped")

def run(folder, interruption):
    try:
        stage("starting")
        time.sleep(float(sys.argv[1]))
        interruption.run(cluster)
    finally:
        stage("stopping the control plane")
        time.sleep(0.1)
        stage("control plane stopped")

sys.exit(run_until_interrupted(run))
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def background_job() -> None:
    """A script's background job ignores SIGINT; under nohup it ignores SIGHUP too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.usefixtures("background_job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_jobs_sandbox_ends_by_int_and_term(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), Interruption():
        signal.raise_signal(number)


@pytest.mark.usefixtures("background_job")
def test_nohup_holds() -> None:
    with Interruption():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_a_foreground_sandbox_ends_by_any_of_them(number: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), Interruption():
        signal.raise_signal(number)


def test_only_the_first_signal_interrupts() -> None:
    def end() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for number in ENDING:
                signal.raise_signal(number)
            reached.append(True)

    reached: list[bool] = []
    with pytest.raises(KeyboardInterrupt), Interruption():
        end()
    assert reached
    for number in ENDING:
        signal.raise_signal(number)  # still ignored


def test_a_signal_before_the_main_task_runs_is_not_lost() -> None:
    ran = False

    async def main() -> None:
        nonlocal ran
        ran = True

    class Early(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            signal.raise_signal(signal.SIGTERM)
            return super().new_event_loop()

    asyncio.set_event_loop_policy(Early())
    try:
        with pytest.raises(KeyboardInterrupt), Interruption() as interruption:
            interruption.run(main)
    finally:
        asyncio.set_event_loop_policy(None)
    assert not ran


def test_handlers_are_restored_if_no_signal_arrived() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with Interruption():
        pass
    assert [signal.getsignal(number) for number in ENDING] == before


@pytest.mark.parametrize("start_s", [0.0, 60.0], ids=["while it runs", "while it starts"])
@pytest.mark.parametrize("pause_s", [0.0, 0.01, 0.07])
def test_signals_at_any_point_of_the_shutdown_leave_it_complete(tmp_path: Path, start_s: float, pause_s: float) -> None:
    """Signals arrive until the process is gone: the cleanup is complete, the exit code 0, and one line is printed."""
    with subprocess.Popen(
        [sys.executable, "-c", SANDBOX, str(start_s)],
        env={"MUSTER_SANDBOX": str(tmp_path / "box"), "PATH": ""},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        awaited = "starting" if start_s else "up"
        while process.stdout.readline().strip() != awaited:
            assert process.poll() is None, process.stderr.read()
        while process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            time.sleep(pause_s)
        printed, errors = process.stdout.read().splitlines(), process.stderr.read()
    assert process.returncode == 0, errors
    assert printed[-1] == "control plane stopped"
    assert ("parts stopped" in printed) == (not start_s)
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1, errors
    assert not (tmp_path / "box").exists()

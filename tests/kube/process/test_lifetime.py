"""What a part's exit code says of its end."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from muster_kube.process.address import BACKLOG, open_listener
from muster_kube.process.command_line import EXIT_FAILED, EXIT_USAGE, Parser
from muster_kube.process.lifetime import cancel_tasks, print_address, stop_on_signals, wait_until_one_ends


@contextlib.asynccontextmanager
async def running():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    await cancel_tasks(task)
    assert task.cancelled()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_is_a_good_end(number: signal.Signals) -> None:
    async with running() as part:
        stop = stop_on_signals()
        try:
            os.kill(os.getpid(), number)
            assert await wait_until_one_ends("thing", [part], stop) == 0
            assert not part.done()
        finally:
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(each)


async def test_a_part_that_ends_by_itself_is_told_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("of its own")

    async with running() as part:
        failing = asyncio.create_task(fails())
        assert await wait_until_one_ends("thing", [part, failing], asyncio.Event()) == EXIT_FAILED
    [message] = caplog.messages
    for fact in ("thing", "of its own"):
        assert fact in message


async def test_what_fails_once_it_was_told_to_stop_is_a_good_end() -> None:
    async def fails() -> None:
        raise ValueError

    stop = asyncio.Event()
    stop.set()
    failing = asyncio.create_task(fails())
    await asyncio.wait([failing])
    assert await wait_until_one_ends("thing", [failing], stop) == 0
    await cancel_tasks(failing)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_address_is_told_for_who_left_the_port_to_the_system(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_listener(host, 0) as listener:
        print_address("metrics", listener)
        assert capsys.readouterr().out == f"metrics on {host}:{listener.getsockname()[1]}\n"


def backlog_of(listener: socket.socket) -> int:
    """tcpi_sacked of linux/tcp.h, which holds the backlog of a socket that listens."""
    return struct.unpack_from("=I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0]


def test_who_reads_the_address_can_connect_before_the_server_runs() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        print_address("listening", listener)
        socket.create_connection(listener.getsockname(), timeout=60).close()
        assert backlog_of(listener) == min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))


def test_a_wrong_flag_is_a_usage_error_and_not_a_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Parser(prog="muster thing").parse_args(["--frob"])
    assert ended.value.code == EXIT_USAGE
    told = capsys.readouterr().err
    for fact in ("muster thing", "\nmuster: ", "--frob"):
        assert fact in told

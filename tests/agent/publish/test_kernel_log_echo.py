"""A canary that begins as a line in the kernel log: what counts as read, and what the agent publishes of it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml

from muster_agent.clock import AgentClock
from muster_agent.process.privileges import drop_privileges
from muster_agent.publish.canary import Canary
from muster_agent.publish.kernel_log_echo import PRIORITY, KernelLogEcho
from muster_agent.settings import load_agent_settings
from muster_kube.nodehealth import CanaryReport, CanaryRequest
from muster_kube.process.settings import SettingsError

NOON = 1_767_268_800.0


class Log:
    """A pipe instead of the device: what was written, without its priority."""

    def __init__(self) -> None:
        self._end, self.writer = os.pipe()

    async def line(self) -> str:
        text = await asyncio.to_thread(os.read, self._end, 8192)
        head, _, line = text.decode().partition(">")
        assert head == f"<{PRIORITY}"
        return line.removesuffix("\n")

    def close(self) -> None:
        os.close(self._end)
        os.close(self.writer)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


async def test_only_the_line_under_way_counts(log: Log) -> None:
    echo = KernelLogEcho(log.writer)
    assert not echo.take("")
    assert not echo.may_be_in(b"")
    task = asyncio.create_task(echo.is_read())
    line = await log.line()
    for other in ("", line[:-1], f"{line} ", f"x{line}", f"muster-canary: {'0' * 16}"):
        assert not echo.take(other)
    assert echo.may_be_in(f"before\n{line}\nafter".encode())
    assert echo.take(line)
    assert await task
    assert not echo.take(line), "it is over"


async def test_each_has_a_number_of_its_own(log: Log) -> None:
    echo, lines = KernelLogEcho(log.writer), set()
    for _ in range(3):
        task = asyncio.create_task(echo.is_read())
        lines.add(line := await log.line())
        echo.take(line)
        assert await task
    assert len(lines) == 3


async def test_one_that_is_not_read_in_time_is_none(log: Log) -> None:
    assert not await KernelLogEcho(log.writer, patience_s=0.01).is_read()


async def test_a_log_that_refuses_lines_is_none() -> None:
    only_for_reading, end = os.pipe()
    assert not await KernelLogEcho(only_for_reading).is_read()
    os.close(only_for_reading)
    os.close(end)


class World:
    """An agent's canary over ``echo``."""

    def __init__(self, echo: KernelLogEcho) -> None:
        self.changes: asyncio.Queue[CanaryReport] = asyncio.Queue()
        clock = AgentClock(wall=lambda: NOON)
        self.canary = Canary("node-1", clock, lambda: self.changes.put_nowait(self.canary.report), echo)


@pytest.fixture
async def world(log: Log) -> AsyncIterator[Callable[[float], World]]:
    tasks = []

    def make(patience_s: float) -> World:
        made = World(KernelLogEcho(log.writer, patience_s=patience_s))
        made.canary.apply(CanaryRequest(id="a"), CanaryReport())
        tasks.append(asyncio.create_task(made.canary.run()))
        return made

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_is_published_before_the_line_is_read(log: Log, world: Callable[[float], World]) -> None:
    one = world(60.0)
    line = await log.line()
    assert one.canary.report == CanaryReport()
    assert one.canary._echo is not None
    assert one.canary._echo.take(line)
    report = await one.changes.get()
    assert (report.id, bool(report.at), report.unread) == ("a", True, "")


async def test_a_line_that_is_not_read_is_published_and_over_with_the_next_that_is(
    log: Log, world: Callable[[float], World]
) -> None:
    one = world(0.2)
    await log.line()
    report = await one.changes.get()
    assert (report.id, report.at, bool(report.unread)) == ("", "", True)
    one.canary.apply(CanaryRequest(id="b"), CanaryReport())
    assert one.canary._echo is not None
    assert one.canary._echo.take(await log.line())
    report = await one.changes.get()
    assert (report.id, bool(report.at), report.unread) == ("b", True, "")


@pytest.mark.parametrize(
    ("path", "dmesg", "facts"),
    [
        ("file", {}, ["dmesg", "/dev/kmsg"]),
        ("missing", {"parameters": {"source": "kmsg"}}, ["missing", "No such file"]),
        ("/dev/full", {"enabled": False}, ["dmesg", "enable"]),
        ("file", {"parameters": {"source": "kmsg"}}, ["file", "not a device"]),
    ],
)
def test_what_cannot_be_written_to_is_an_error_at_the_start(
    path: str, dmesg: dict[str, object], facts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "agent.yaml"
    config.write_text(yaml.safe_dump({"canary_kernel_line": True, "checks": {"dmesg": dmesg}}))
    settings = load_agent_settings(config, {"kmsg": tmp_path / path}, {})
    with pytest.raises(SettingsError) as refused:
        drop_privileges(settings)
    assert [fact for fact in ["canary_kernel_line", *facts] if fact not in str(refused.value)] == []
    assert (tmp_path / "file").read_text() == ""


def test_without_the_setting_nothing_is_opened(tmp_path: Path) -> None:
    settings = load_agent_settings(None, {"kmsg": Path("/dev/full")}, {})
    assert drop_privileges(settings).kernel_log_writer is None

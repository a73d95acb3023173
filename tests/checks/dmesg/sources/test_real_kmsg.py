"""This machine's own kernel log: what only the real device can say."""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tests.machine import needs

from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg import DMESG, DmesgParameters
from muster_checks.dmesg.sources.kmsg import KmsgPlace, KmsgSource
from muster_checks.dmesg.sources.position import load_position, read_boot_id
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_checks.dmesg.stream import KernelLogStream

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

pytestmark = [pytest.mark.kmsg, needs("/dev/kmsg")]


def write(text: str, level: int = 6) -> None:
    """Opened for each write: the kernel limits the rate of an open file (printk_devkmsg=ratelimit)."""
    descriptor = os.open(KMSG, os.O_WRONLY)
    try:
        os.write(descriptor, f"<{level}>{text}\n".encode())
    finally:
        os.close(descriptor)


@pytest.fixture
def mark() -> str:
    """A word that stands in no other line."""
    return f"muster test {uuid.uuid4().hex}"


def open_real(echo: Any, mark: str, saved: bytes | None = None) -> Any:
    judge = echo()
    timeline = Timeline(KernelClocks())
    position = load_position(saved)
    place = msgspec.json.decode(position.place, type=KmsgPlace) if position else KmsgPlace(skipping=True)
    source = KmsgSource(KMSG, timeline, lambda text: mark.encode() in text, place)
    return KernelLogStream(source, judge, timeline, boot_id=read_boot_id(BOOT_ID), source_name="kmsg:/dev/kmsg")


async def test_a_written_line_comes_as_a_users_and_at_its_time(echo: Any, mark: str) -> None:
    timeline = Timeline(KernelClocks())
    source = KmsgSource(KMSG, timeline, lambda text: mark.encode() in text, KmsgPlace(skipping=True))
    while not source.read().at_end:
        pass
    before = timeline.now()
    write(f"{mark} é\\", level=4)
    after = timeline.now()
    lines = []
    while not (batch := source.read()).at_end or batch.lines:
        lines += batch.lines
    source.close()
    (line,) = lines
    assert line.text == f"{mark} é\\"
    assert (line.level, line.facility, line.origin) == (4, 1, Origin.USER)
    assert before - 1.0 < line.at < after + 1.0  # the kernel's clock for its log is not quite that of programs
    assert line.seq > 0


async def test_a_sleeping_reader_is_woken(echo: Any, mark: str) -> None:
    stream = open_real(echo, mark)
    events = stream.events()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await stream.drain()
    write(mark)
    assert [sign.message for sign in await asyncio.wait_for(waiting, 60)] == [mark]
    await events.aclose()


async def test_the_longest_line_that_can_be_written_is_whole(echo: Any, mark: str, read_out: Any) -> None:
    stream = open_real(echo, mark)
    await read_out(stream)
    text = f"{mark} ".ljust(1015, "x")
    write(text)
    assert [sign.message for sign in await read_out(open_real(echo, mark, stream.position()))] == [text]


async def test_a_restart_reads_each_line_once(echo: Any, mark: str, read_out: Any) -> None:
    stream = open_real(echo, mark)
    await read_out(stream)
    read = []
    for number in range(5):
        write(f"{mark} {2 * number}")
        write(f"{mark} {2 * number + 1}")
        stream = open_real(echo, mark, stream.position())
        read += [sign.message for sign in await read_out(stream)]
    assert read == [f"{mark} {number}" for number in range(10)]


async def test_records_overwritten_unread_are_counted_and_reading_goes_on(echo: Any, mark: str) -> None:
    timeline = Timeline(KernelClocks())
    source = KmsgSource(KMSG, timeline, lambda text: mark.encode() in text, KmsgPlace(skipping=True))
    while not source.read().at_end:
        pass
    filler = "muster test filler ".ljust(900, ".")
    written = 0
    first = source.counts.lines
    while written < 4000:  # of any kernel's ring of 1 MiB and less
        write(filler)
        written += 1
    write(mark)
    texts, lost = [], 0
    for _ in range(1000):
        batch = source.read()
        texts += [line.text for line in batch.lines]
        lost += sum(gap.lost for gap in batch.gaps)
        if batch.at_end:
            break
    source.close()
    assert texts == [mark]
    assert lost + source.counts.lines - first >= written + 1
    if lost == 0:
        pytest.skip("this kernel's ring holds 4,000 long records: nothing was overwritten")


async def test_the_check_reads_this_machines_log_to_its_end(read_out: Any) -> None:
    assert DMESG.stream is not None
    stream = DMESG.stream(NodeView(), DmesgParameters(), None)
    await read_out(stream)
    assert stream.caught_up
    assert stream.health() == ""
    saved = load_position(stream.position())
    assert saved is not None
    assert saved.boot_id == BOOT_ID.read_text().strip()


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before + 3

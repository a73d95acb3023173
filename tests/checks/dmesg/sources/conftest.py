"""A kernel log to play with, a clock that stands still, and a judge that says back what it hears."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg.sources.kmsg import KmsgPlace, KmsgSource
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.source import JudgeCounts
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_checks.dmesg.stream import KernelLogStream

BOOTED = 1_700_000_000.0


@dataclass
class Clock:
    """Wall clock and time since boot, moved by hand."""

    uptime: float = 1000.0
    step: float = 0.0

    def clocks(self) -> KernelClocks:
        return KernelClocks(realtime=lambda: BOOTED + self.step + self.uptime, monotonic=lambda: self.uptime)


class Ring:
    """A kernel log of ``capacity`` records; devices opened on it behave as /dev/kmsg does."""

    def __init__(self, capacity: int = 100_000) -> None:
        self.capacity = capacity
        self.records: list[bytes | OSError] = []
        self.oldest = 0
        self.devices: list[RingDevice] = []
        self.broken: OSError | None = None

    def write(self, text: bytes, prio: int = 6, usec: int = 1_000_000, flags: bytes = b"-") -> None:
        self.put(b"%d,%d,%d,%s;%s\n" % (prio, len(self.records), usec, flags, text))

    def put(self, record: bytes | OSError) -> None:
        """A record as it is, or an error that reading it gives."""
        self.records.append(record)
        self.oldest = max(self.oldest, len(self.records) - self.capacity)
        for device in self.devices:
            os.eventfd_write(device.event, 1)

    def open(self, _path: Path) -> "RingDevice":
        if self.broken is not None:
            raise self.broken
        return RingDevice(self)


class RingDevice:
    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.next = ring.oldest
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        ring.devices.append(self)

    def read(self) -> bytes:
        if self.ring.broken is not None:
            raise self.ring.broken
        if self.next < self.ring.oldest:
            self.next = self.ring.oldest
            raise BrokenPipeError
        if self.next >= len(self.ring.records):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.event)
            raise BlockingIOError
        record = self.ring.records[self.next]
        self.next += 1
        if isinstance(record, OSError):
            raise record
        return record

    def fileno(self) -> int:
        return self.event

    def close(self) -> None:
        self.ring.devices.remove(self)
        os.close(self.event)


@dataclass
class EchoJudge:
    """A sign for each line; ``heard`` is its state, so a line judged twice or never shows."""

    heard: list[str] = field(default_factory=list)
    due: float | None = None
    ticks: list[float] = field(default_factory=list)
    counters: JudgeCounts = field(default_factory=JudgeCounts)

    def interesting(self, text: bytes) -> bool:
        return any(b"dull" not in line for line in text.removesuffix(b"\n").split(b"\n"))

    def take(self, line: KernelLine) -> list[Sign | AllClear]:
        if line.text == "trip":
            raise ZeroDivisionError
        self.heard.append(line.text)
        return [Sign(component="host", reason="Echo", verdict=Verdict.WARN, message=line.text, at=line.at)]

    def tick(self, now: float) -> list[Sign | AllClear]:
        self.ticks.append(now)
        self.due = None
        return [AllClear(component="host", at=now, how="quiet", reasons=("Echo",))]

    def next_tick(self) -> float | None:
        return self.due

    def state(self) -> Any:
        return self.heard


def everything(_text: bytes) -> bool:
    return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    return Timeline(clock.clocks())


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    for device in list(ring.devices):
        device.close()


MakeSource = Callable[..., KmsgSource]


@pytest.fixture
def kmsg(timeline: Timeline) -> MakeSource:
    """A source on a ring: ``kmsg(ring, place)``."""

    def make(ring: Ring, place: KmsgPlace | None = None) -> KmsgSource:
        return KmsgSource(Path("/dev/kmsg"), timeline, everything, place or KmsgPlace(), ring.open)

    return make


@pytest.fixture(scope="session")
def new_ring() -> type[Ring]:
    return Ring


@pytest.fixture(scope="session")
def echo() -> type[EchoJudge]:
    return EchoJudge


Reading = Callable[[KernelLogStream], Awaitable[list[Sign | AllClear]]]


@pytest.fixture
def read_out() -> Reading:
    """Everything a stream has to say until its source is read to the end; then the stream is closed."""

    async def read(stream: KernelLogStream) -> list[Sign | AllClear]:
        signs: list[Sign | AllClear] = []

        async def take() -> None:
            async for batch in stream.events():
                signs.extend(batch)

        reader = asyncio.create_task(take())
        async with asyncio.timeout(60):
            await stream.drain()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        return signs

    return read

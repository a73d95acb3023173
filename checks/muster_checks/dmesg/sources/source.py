"""What the stream asks of a source of kernel messages, whichever it is.

A source is read in turns: each call of ``read()`` takes a bounded piece and never waits, so that a flood or a long
backlog leaves the agent's loop free for everything else.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from muster_checks.dmesg.sources.records import KernelLine

LINES_PER_TURN = 512

Interesting = Callable[[bytes], bool]  # may this text (without stamp) matter to the judge, or one of the lines in it?


class SourceCounts(msgspec.Struct):
    """What a source has seen since it was opened, for metrics.

    lines: read, whether of interest or not; malformed: not a record at all; lost: overwritten before they were read;
    overlong: cut because of their length; unjudged: the judge failed on them
    """

    lines: int = 0
    malformed: int = 0
    lost: int = 0
    overlong: int = 0
    unjudged: int = 0


class JudgeCounts(msgspec.Struct):
    """What became of the lines of interest, for metrics.

    judged: looked at; signs: lines that meant something; refused_user: lines from user space left out;
    stale: old warnings not raised; covered: signs that another finding says already;
    unknown_gpus: resets of GPUs whose address is not known; forgotten: findings dropped for want of room
    """

    judged: int = 0
    signs: int = 0
    refused_user: int = 0
    stale: int = 0
    covered: int = 0
    unknown_gpus: int = 0
    forgotten: int = 0


class Gap(msgspec.Struct, frozen=True):
    """``lost`` records before number ``seq`` were overwritten before they were read; ``at``: epoch seconds."""

    lost: int
    seq: int
    at: float


class Batch(msgspec.Struct):
    """One turn's reading.

    lines:  those of interest, in order
    gaps:   records lost on the way
    at_end: this turn came to the end of what the source held when the turn began
    more:   another turn would bring more at once; else ``arm()`` and wait
    """

    lines: list[KernelLine]
    gaps: list[Gap]
    at_end: bool = False
    more: bool = False


class LineReader(Protocol):
    """What makes messages of the physical lines of a file."""

    malformed: int

    def take(self, raw: bytes) -> KernelLine | None:
        """The message of one line without its newline; None when it cannot matter."""

    def forget(self) -> None:
        """Another file begins: nothing carries over."""


class LogSource(Protocol):
    """A source of kernel messages.

    Nothing here raises for a source that is missing, broken or full of rubbish: ``health()`` says what is wrong, and
    the source tries again by itself.
    """

    counts: SourceCounts

    def open(self, wake: Callable[[], None]) -> None:
        """Begin. ``wake`` is called, in the running loop, when reading again may bring something."""

    def read(self) -> Batch:
        """Take one turn."""

    def arm(self) -> None:
        """Nothing more is wanted now: call ``wake`` once when there may be more."""

    def look_again(self) -> None:
        """Someone waits for the end: ``at_end`` is True only for a look that begins after this call."""

    def place(self) -> bytes:
        """Where to go on from, after all that ``read()`` has returned; opaque."""

    def health(self) -> str:
        """Empty while it can be read; else why not."""

    def close(self) -> None:
        """Let go of everything. Once."""


class ReopenDelay:
    """The wait before a broken source is tried again: 0.5 s, doubled each time, at most 30 s."""

    FIRST_S = 0.5
    LONGEST_S = 30.0

    def __init__(self) -> None:
        self.delay_s = self.FIRST_S
        self._timer: asyncio.TimerHandle | None = None

    def call(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Have ``wake`` called after the wait, once; a wait that is running goes on."""
        if self._timer is None or self._timer.when() <= loop.time():
            self._timer = loop.call_later(self.delay_s, wake)
            self.delay_s = min(2 * self.delay_s, self.LONGEST_S)

    def reset(self) -> None:
        self.delay_s = self.FIRST_S
        self.cancel()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

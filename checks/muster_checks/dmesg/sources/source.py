"""The interface between the stream and any source of kernel messages.

A source is read in turns: each call of ``read()`` takes a bounded number of lines and never waits, so that a flood or a
long backlog does not block the agent's event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from muster_checks.dmesg.sources.records import KernelLine

LINES_PER_TURN = 512

Interesting = Callable[[bytes], bool]  # whether the judge may need this text (without stamp) or a line of it


class SourceCounts(msgspec.Struct):
    """Numbers of lines since the source was opened, for metrics.

    lines: read, of interest or not; malformed: not a valid record; lost: overwritten before they were read;
    overlong: truncated because of their length; unjudged: the judge failed on them
    """

    lines: int = 0
    malformed: int = 0
    lost: int = 0
    overlong: int = 0
    unjudged: int = 0


class JudgeCounts(msgspec.Struct):
    """Numbers of lines of interest by outcome, for metrics.

    judged: examined; signs: lines with a meaning; refused_user: lines from user space left out;
    stale: old warnings not raised; covered: signs that another open finding already reports;
    unknown_gpus: resets of GPUs whose address is unknown; forgotten: findings dropped at the limit
    """

    judged: int = 0
    signs: int = 0
    refused_user: int = 0
    stale: int = 0
    covered: int = 0
    unknown_gpus: int = 0
    forgotten: int = 0


class Gap(msgspec.Struct, frozen=True):
    """``lost`` records before number ``seq`` were overwritten before they could be read; ``at``: epoch seconds."""

    lost: int
    seq: int
    at: float


class Batch(msgspec.Struct):
    """The result of one turn.

    lines:  the lines of interest, in order
    gaps:   lost records
    at_end: this turn reached the end of the source as it was at the beginning of the turn
    more:   another turn would return more at once; otherwise call ``arm()`` and wait
    size:   bytes read from a source that overwrites what is not read in time; 0 for others
    """

    lines: list[KernelLine]
    gaps: list[Gap]
    at_end: bool = False
    more: bool = False
    size: int = 0


class LineReader(Protocol):
    """Turns the physical lines of a file into messages."""

    malformed: int
    live: bool
    """Whether the end of the file was reached, so that further lines are read while they are written."""

    def take(self, raw: bytes) -> KernelLine | None:
        """The message of one line without its newline; None if it is not of interest."""

    def forget(self) -> None:
        """Another file begins: drop all state."""


class LogSource(Protocol):
    """A source of kernel messages.

    No method raises for a source that is missing, broken or contains invalid data: ``health()`` reports the error, and
    the source retries.
    """

    counts: SourceCounts

    def open(self, wake: Callable[[], None]) -> None:
        """Open the source. It calls ``wake``, in the running loop, when another read may return something."""

    def read(self) -> Batch:
        """Take one turn."""

    def arm(self) -> None:
        """Request one call of ``wake`` when there may be more to read."""

    def look_again(self) -> None:
        """A caller waits for the end: ``at_end`` may be True only for a read that begins after this call."""

    def place(self) -> bytes:
        """The place after everything that ``read()`` has returned; opaque."""

    def health(self) -> str:
        """Empty while the source can be read; otherwise the error."""

    def close(self) -> None:
        """Release all resources. Called once."""


class ReopenDelay:
    """The delay before a broken source is opened again: 0.5 s, doubled each time up to 30 s."""

    FIRST_S = 0.5
    LONGEST_S = 30.0

    def __init__(self) -> None:
        self.delay_s = self.FIRST_S
        self._timer: asyncio.TimerHandle | None = None

    def call(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call ``wake`` once after the delay; a running delay continues."""
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

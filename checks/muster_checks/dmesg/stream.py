"""The stream behind the check ``dmesg``: reads a source of kernel messages, judges the lines, and yields signs.

One loop reads a bounded batch, judges it and yields its signs. The batch counts as processed only when the consumer
requests the next one, so a position saved at any moment covers exactly the batches that the consumer has finished. If
the agent dies within a batch, that batch is read and judged again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

import msgspec

from muster_checks.base.declaration import AllClear, CheckStream, LogEcho, Sign
from muster_checks.base.vocabulary import Origin, Verdict
from muster_checks.dmesg.sources.position import Position
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.source import Gap, JudgeCounts, LogSource
from muster_checks.dmesg.sources.timeline import Timeline

_log = logging.getLogger(__name__)

GAP_COMPONENT = "host"
GAP_REASON = "KernelLogGap"
GAP_QUIET_S = 3600.0  # the warning ends after an hour without another gap
# One wake-up costs as much as reading hundreds of lines. In a flood (more lines a second than any single fault logs)
# the stream therefore waits for many lines and reads them together; otherwise it reads at every wake-up. It waits for
# half of what the smallest log buffer in use (128 KiB) holds, so that the rate may double meanwhile.
FLOOD_LINES_PER_S = 200
GATHER_BYTES = 64 * 1024
GATHER_S = 0.3  # at most
SHORTEST_WAIT_S = 0.05  # minimum time between two ticks


class LineJudge(Protocol):
    """The part that judges; see judge.py."""

    counters: JudgeCounts

    def take(self, line: KernelLine) -> list[Sign | AllClear]: ...

    def tick(self, now: float) -> list[Sign | AllClear]: ...

    def next_tick(self) -> float | None: ...

    def state(self) -> Any: ...  # anything that msgspec can encode

    def forget(self, component: str, reasons: tuple[str, ...] = ()) -> object: ...


class _Flood:
    """Whether more than ``limit`` lines a second arrive, in this second or the one before."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._began = 0.0
        self._lines, self._size = 0, 0  # in this second
        self._rates_before = 0.0, 0.0

    def add(self, lines: int, size: int) -> None:
        """``lines`` of together ``size`` bytes were read."""
        self._lines += lines
        self._size += size

    def wait_s(self, now: float) -> float:
        """How long to wait for more lines to read together; 0: no flood. ``now``: seconds of a monotonic clock."""
        passed_s = now - self._began
        if passed_s >= 1.0:
            self._rates_before = (self._lines / passed_s, self._size / passed_s) if passed_s < 2.0 else (0.0, 0.0)
            self._began, self._lines, self._size, passed_s = now, 0, 0, 0.0
        if max(self._rates_before[0], self._lines) <= self._limit:
            return 0.0
        # the rate of this second so far, as the flood may just have begun
        bytes_per_s = max(self._rates_before[1], self._size / max(passed_s, SHORTEST_WAIT_S))
        return min(GATHER_S, GATHER_BYTES / bytes_per_s) if bytes_per_s else GATHER_S


class KernelLogStream(CheckStream):
    """Every position contains ``boot_id`` and ``source_name``. ``gap_at``: from the last position of this boot;
    ``echo``: see NodeView."""

    def __init__(
        self,
        source: LogSource,
        judge: LineJudge,
        timeline: Timeline,
        *,
        boot_id: str,
        source_name: str,
        gap_at: float | None = None,
        echo: LogEcho | None = None,
    ) -> None:
        self._source = source
        self._judge = judge
        self._timeline = timeline
        self._boot_id = boot_id
        self._source_name = source_name
        self._gap_at = gap_at
        self._echo = echo
        self._place = source.place()
        self._in_hand: bytes | None = None  # the position before the batch that the consumer is processing
        self._woken = asyncio.Event()
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._state = "new"
        self._flood = _Flood(FLOOD_LINES_PER_S)

    def counts(self) -> Mapping[str, int]:
        """Counts of lines read (source.SourceCounts) and judged (source.JudgeCounts)."""
        return msgspec.structs.asdict(self._source.counts) | msgspec.structs.asdict(self._judge.counters)

    async def events(self) -> AsyncGenerator[list[Sign | AllClear], None]:
        if self._state != "new":
            raise RuntimeError("a kernel log stream can be read only once: create another from its position")
        self._state = "open"
        self._source.open(self._woken.set)
        try:
            while True:
                self._woken.clear()
                waiting = len(self._drain_waiters)  # later waiters need a later read
                before, lines = self._place, self._source.counts.lines
                batch = self._source.read()
                self._flood.add(self._source.counts.lines - lines, batch.size)
                due = not batch.more and self._due() <= self._timeline.now()
                if batch.lines or batch.gaps or due:
                    self._in_hand = self._encode(before)
                    signs = self._judge_turn(batch.lines, batch.gaps, due=due)
                    if signs:
                        yield signs
                    self._in_hand = None
                self._place = self._source.place()
                if batch.at_end:
                    self.caught_up = True
                if batch.at_end or self._source.health():
                    self._answer(waiting)
                if batch.more:
                    await asyncio.sleep(0)
                else:
                    await self._rest()
        finally:
            self._state = "closed"
            self._source.close()
            for waiter in self._drain_waiters:
                if not waiter.done():
                    waiter.set_exception(RuntimeError("the kernel log stream has ended"))

    def _judge_turn(self, lines: list[KernelLine], gaps: list[Gap], *, due: bool) -> list[Sign | AllClear]:
        signs: list[Sign | AllClear] = [self._report(gap) for gap in gaps]
        for line in lines:
            if self._echo is not None and line.origin is Origin.USER and self._echo.take(line.text):
                continue
            try:
                signs += self._judge.take(line)
            except Exception:
                # one line that breaks the judge must not stop the check
                _log.exception("cannot judge a kernel line: %.200s", line.whole)
                self._source.counts.unjudged += 1
        if due:
            now, tick = self._timeline.now(), self._judge.next_tick()
            if tick is not None and tick <= now:
                signs += self._judge.tick(now)
            if self._gap_at is not None and self._gap_at + GAP_QUIET_S <= now:
                self._gap_at = None
                signs.append(AllClear(component=GAP_COMPONENT, at=now, how="quiet", reasons=(GAP_REASON,)))
        return signs

    def _report(self, gap: Gap) -> Sign:
        self._gap_at = gap.at
        return Sign(
            component=GAP_COMPONENT,
            reason=GAP_REASON,
            verdict=Verdict.WARN,
            message=f"{gap.lost} kernel log records before record {gap.seq} were overwritten before they could be read",
            at=gap.at,
            count=gap.lost,
            origin=Origin.KERNEL,
        )

    def _due(self) -> float:
        """Epoch seconds of the next event that is due without a new line."""
        tick = self._judge.next_tick()
        due = float("inf") if tick is None else tick
        return due if self._gap_at is None else min(due, self._gap_at + GAP_QUIET_S)

    async def _rest(self) -> None:
        """Wait until there is something to read, a waiter, or an event that is due."""
        gather_s = self._flood.wait_s(asyncio.get_running_loop().time())
        if gather_s:
            await asyncio.sleep(gather_s)
            return  # there is more to read: to wait for it would cost two more wake-ups
        self._source.arm()
        due = self._due()
        if due == float("inf"):
            await self._woken.wait()
            return
        wait_s = max(due - self._timeline.now(), SHORTEST_WAIT_S)
        timer = asyncio.get_running_loop().call_later(wait_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        self._judge.forget(component, reasons)
        if component == GAP_COMPONENT and GAP_REASON in reasons:
            self._gap_at = None

    def position(self) -> bytes:
        return self._encode(self._place) if self._in_hand is None else self._in_hand

    def _encode(self, place: bytes) -> bytes:
        return msgspec.json.encode(
            Position(
                boot_id=self._boot_id,
                source=self._source_name,
                place=place.decode("ascii"),
                booted=self._timeline.booted,
                judge=msgspec.Raw(msgspec.json.encode(self._judge.state())),
                gap_at=self._gap_at,
            )
        )

    async def drain(self) -> None:
        """See :meth:`CheckStream.drain`. Also returns if the source cannot be read; ``health()`` then reports why.

        Raises RuntimeError if the stream is closed before or meanwhile.
        """
        if self._state == "closed":
            raise RuntimeError("the kernel log stream has ended")
        waiter = asyncio.get_running_loop().create_future()
        self._drain_waiters.append(waiter)
        self._source.look_again()
        self._woken.set()
        await waiter

    def _answer(self, count: int) -> None:
        for waiter in self._drain_waiters[:count]:
            if not waiter.done():
                waiter.set_result(None)
        del self._drain_waiters[:count]

    def health(self) -> str:
        return self._source.health()

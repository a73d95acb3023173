"""Reads the lines of one query, each once, page after page.

The position is kept only in this process. Lines reach Loki late and out of order, so each turn reads ``overlap`` before
the newest line again and skips known lines. A turn that fails does not move the position: when Loki is back, everything
since is read.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster_tainter.sources.http_client import NS, AnswerTooLarge
from muster_tainter.sources.loki.client import LokiPage
from muster_tainter.sources.loki.response import LogEntry

log = logging.getLogger(__name__)

PAGE_LINES = 5000  # Loki's default limit; a lower one is learned from its response
SLICE = 250  # lines between two yields to the event loop
CROWD_LIMIT = 200  # maximum number of label values to exclude in a query
SEEN_LIMIT = 100_000  # relevant lines within the period that is read again
AHEAD_NS = 600 * NS  # lines of nodes whose clocks are ahead; Loki accepts up to ten minutes
SILENT_NS = 600 * NS  # for a stream without newer lines, nothing older than this is read again


class QueryClient(Protocol):
    def now_ns(self) -> int: ...

    async def ask(self, query: str, start_ns: int, end_ns: int, limit: int) -> LokiPage: ...


@dataclass
class LineCounts:
    """read: lines received, including repeats; taken: relevant and new; lost: nanoseconds of which some lines could not
    be read."""

    read: int = 0
    taken: int = 0
    malformed: int = 0
    lost: int = 0


@dataclass
class ReadWindow:
    """The read part of a query, in Loki's time (nanoseconds).

    read_to: when the last complete turn began
    newest:  the newest line; the position follows it for a fleet whose clocks are behind Loki's
    floor:   nothing before this is read, because it is unknown what was read there
    """

    read_to: int
    newest: int
    floor: int

    @classmethod
    def begin(cls, now_ns: int, overlap_ns: int, lookback_ns: int, led_until_ns: int | None) -> "ReadWindow":
        """For a new leader. led_until_ns: when the last leader was alive; None: there was none."""
        floor = now_ns - lookback_ns
        read_to = floor if led_until_ns is None else max(floor, min(led_until_ns, now_ns))
        return cls(read_to, read_to, floor if led_until_ns is None else max(floor, read_to - overlap_ns))

    def start(self, overlap_ns: int) -> int:
        reach = self.read_to - max(overlap_ns, SILENT_NS)
        return max(min(self.newest, self.read_to) - overlap_ns, reach, self.floor, 0)


Matters = Callable[[LogEntry], bool]
Take = Callable[[Sequence[LogEntry]], Awaitable[None]]


class QueryReader:
    """One query. ``turn`` reads everything: ``take`` gets the lines that matter and were not taken before, oldest first
    in each page. Lines for which ``take`` has returned are not passed to it again."""

    def __init__(
        self,
        query: str,
        window: ReadWindow,
        overlap_ns: int,
        *,
        apart: str,
        page_lines: int = PAGE_LINES,
        seen_limit: int = SEEN_LIMIT,
    ) -> None:
        """apart: the label that distinguishes lines of the same time."""
        self.query = query
        self.window = window
        self.counts = LineCounts()
        self.overlap_ns = overlap_ns
        self._apart = apart
        self._seen_limit = seen_limit
        self._limit = self._most = page_lines
        self._seen: dict[bytes, int] = {}
        self._lost: set[int] = set()
        self._under_way: tuple[int, int] | None = None  # an interrupted turn: its position, and when it began

    async def turn(self, loki: QueryClient, matters: Matters, take: Take) -> None:
        """Raises SourceError and what ``take`` raises; the next turn continues from there."""
        at, begun = self._under_way or (self.window.start(self.overlap_ns), -1)
        while True:
            end = max(loki.now_ns() + AHEAD_NS, at + 1)
            page = await self._ask(loki, self.query, at, end)
            begun = min(page.asked_ns, end) if begun < 0 else begun
            await self._give(page, matters, take)
            if page.lines < self._limit or not page.entries:
                break
            last = page.entries[-1].at_ns
            if last <= at:
                await self._read_crowded_second(loki, at, page, matters, take)
                last = at + 1
            at = last
            self._under_way = (at, begun)
            self._crop()
        self._under_way = None
        self.window.read_to = max(self.window.read_to, begun)
        self._forget()
        self._limit = min(self._most, self._limit * 2)

    async def _ask(self, loki: QueryClient, query: str, start: int, end: int) -> LokiPage:
        while True:
            try:
                page = await loki.ask(query, start, end, self._limit)
            except AnswerTooLarge as error:
                if error.most:
                    self._most = min(self._most, error.most)
                fewer = min(self._most, self._limit // 2)
                if fewer < 1:
                    raise
                log.info("%s: reduced the page size to %d lines", error, fewer)
                self._limit = fewer
                continue
            self.counts.read += page.lines
            self.counts.malformed += page.malformed
            return page

    async def _give(self, page: LokiPage, matters: Matters, take: Take) -> None:
        fresh: dict[bytes, LogEntry] = {}
        for i, entry in enumerate(page.entries):
            if i % SLICE == SLICE - 1:
                await asyncio.sleep(0)  # let taints be decided in this event loop
            if matters(entry):
                name = _name(entry)
                if name not in self._seen:
                    fresh[name] = entry
        if fresh:
            await take(list(fresh.values()))
            self.counts.taken += len(fresh)
            for name, entry in fresh.items():
                self._seen[name] = entry.at_ns
        if page.entries:
            self.window.newest = max(self.window.newest, page.entries[-1].at_ns)

    async def _read_crowded_second(
        self, loki: QueryClient, at: int, page: LokiPage, matters: Matters, take: Take
    ) -> None:
        """Read a nanosecond with more lines than a page holds. Times do not distinguish them, but labels do: query each
        label value of the page separately, then all others, until a page is not full."""
        done: set[str] = set()
        while page.lines >= self._limit:
            values = {entry.labels.get(self._apart, "") for entry in page.entries} - done
            if not values or len(done) > CROWD_LIMIT:
                self._lose(at)
                return
            for value in sorted(values):
                one = f"{self.query} | {self._apart}={json.dumps(value)}"
                answer = await self._ask(loki, one, at, at + 1)
                await self._give(answer, matters, take)
                if answer.lines >= self._limit:
                    self._lose(at)
            done |= values
            others = json.dumps("|".join(re.escape(value) for value in sorted(done)))
            page = await self._ask(loki, f"{self.query} | {self._apart}!~{others}", at, at + 1)
            await self._give(page, matters, take)

    def _lose(self, at: int) -> None:
        if at in self._lost:
            return  # logged the first time
        self._lost.add(at)
        self.counts.lost += 1
        log.error("%s: too many lines at the same time %d: some of them were not read", self.query, at)

    def _forget(self) -> None:
        """Drop lines that will not be read again; in a flood of lines, read a shorter period again."""
        start = self.window.start(self.overlap_ns)
        self._seen = {name: at for name, at in self._seen.items() if at >= start}
        self._lost = {at for at in self._lost if at >= start}
        self._crop()

    def _crop(self) -> None:
        if len(self._seen) > self._seen_limit:
            kept = sorted(self._seen.values())[-self._seen_limit :]
            self.window.floor = max(self.window.floor, kept[0] + 1)
            self._seen = {name: at for name, at in self._seen.items() if at >= self.window.floor}
            log.warning("%s: too many lines: lines that arrive late are skipped from now on", self.query)


def _name(entry: LogEntry) -> bytes:
    """Identifies the line in its stream."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(entry.labels):
        digest.update(f"{name}\0{entry.labels[name]}\0".encode("utf-8", "replace"))
    digest.update(f"{entry.at_ns}\0{entry.line}".encode("utf-8", "replace"))
    return digest.digest()

"""A work queue of keys: each is queued at most once and processed at most once at a time, and none is lost.

As in client-go, a key that is added while it is processed is queued again afterwards; each key has its own delays and
backoff. No library served: it is a set, a queue and asyncio's timers.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from muster_kube.api.errors import ApiError, TooManyRequests
from muster_kube.controller.backoff import Backoff

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)
FAIR = 8  # of this many keys, at least one comes from the normal line


class ShutDown(Exception):
    """The queue was shut down and is empty."""


class WorkQueue(Generic[K]):
    """A queue of keys for one event loop. After ``get`` returns a key, call ``done``."""

    def __init__(self, *, backoff: Backoff = Backoff(0.05, 60.0), rng: random.Random | None = None) -> None:  # noqa: B008 - frozen
        self._backoff = backoff
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._ahead: deque[K] = deque()  # processed before those of _line
        self._line: deque[K] = deque()
        self._in_a_row = 0  # keys of _ahead returned while others waited
        self._first: set[K] = set()  # the wanted keys that belong into _ahead
        self._wanted: set[K] = set()  # queued, or to be queued again after the current processing
        self._in_hand: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._shut = False

    def __len__(self) -> int:
        """Number of queued keys, without those that are processed or delayed."""
        return len(self._ahead) + len(self._line)

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    @property
    def delayed(self) -> int:
        return len(self._timers)

    def add(self, key: K, *, first: bool = False) -> None:
        """Queue ``key`` once, however often it is added until it is processed. first: before keys that were added
        without ``first``; every ``FAIR``-th key still comes from the others, so that none starves."""
        if self._shut or (key in self._wanted and (not first or key in self._first)):
            return
        if first:
            self._first.add(key)
            if key in self._wanted and key not in self._in_hand:
                self._line.remove(key)
        self._wanted.add(key)
        if key not in self._in_hand:
            self._enter(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add ``key`` in ``delay_s`` seconds; of several delays the earliest applies."""
        if self._shut:
            return
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        known = self._timers.get(key)
        if known is not None:
            if known.when() <= due:
                return
            known.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    def add_rate_limited(self, key: K, *, at_least_s: float = 0.0) -> float:
        """Add ``key`` after its backoff, which grows until ``forget``; returns the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = max(self._backoff.delay_s(failures, self._rng), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the backoff of ``key`` after a success."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key. Raises ShutDown if the queue is shut down and empty."""
        while not (self._ahead or self._line):
            if self._shut:
                raise ShutDown
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                # woken and cancelled at the same time: wake another waiter for the key
                if waiting.done() and not waiting.cancelled():
                    self._wake()
                else:
                    with suppress(ValueError):  # already removed
                        self._getters.remove(waiting)
                raise
        key = self._next_line().popleft()
        self._wanted.discard(key)
        self._first.discard(key)
        self._in_hand.add(key)
        if self._ahead or self._line:
            self._wake()
        return key

    def done(self, key: K) -> None:
        """End the processing of ``key``; if it was added meanwhile, queue it again."""
        self._in_hand.discard(key)
        if key in self._wanted:
            self._enter(key)

    def shut_down(self) -> None:
        """Accept no more keys and drop delayed ones. ``get`` returns the queued keys, then raises."""
        self._shut = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._getters:
            self._wake()

    def _next_line(self) -> deque[K]:
        if not (self._ahead and self._line):
            self._in_a_row = 0
            return self._ahead or self._line
        self._in_a_row = (self._in_a_row + 1) % FAIR
        return self._ahead if self._in_a_row else self._line

    def _enter(self, key: K) -> None:
        (self._ahead if key in self._first else self._line).append(key)
        self._wake()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._getters:
            waiting = self._getters.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


async def run_workers(queue: WorkQueue[K], handler: Callable[[K], Awaitable[object]], *, workers: int) -> None:
    """Call ``handler`` for every key, ``workers`` at a time, until the queue is shut down or the task is cancelled.

    If the handler raises, the key is retried after its backoff, and not before the Retry-After of a 429. If it returns,
    the backoff is reset.
    """
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(_work(queue, handler))


async def _work(queue: WorkQueue[K], handler: Callable[[K], Awaitable[object]]) -> None:
    while True:
        try:
            key = await queue.get()
        except ShutDown:
            return
        try:
            await handler(key)
        except TooManyRequests as error:
            delay_s = queue.add_rate_limited(key, at_least_s=error.retry_after_s)
            log.warning("%s: will retry in %.1f s: %s", key, delay_s, error)
        except ApiError as error:
            delay_s = queue.add_rate_limited(key)
            log.warning("%s: will retry in %.1f s: %s", key, delay_s, error)
        except Exception as error:
            delay_s = queue.add_rate_limited(key)
            log.warning("%s: will retry in %.1f s: %s: %s", key, delay_s, type(error).__name__, error, exc_info=error)
        else:
            queue.forget(key)
        finally:
            queue.done(key)

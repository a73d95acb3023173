"""What is done behind the taints: round after round, while this process leads.

A round waits until nothing is about a taint, though not for ever; then decides anew on all that has changed, and writes
in order. The next one comes when something has changed or time has, and later each time while the last one failed.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Object
from muster_kube.controller.backoff import Backoff

log = logging.getLogger(__name__)

WAIT_AT_MOST_S = 5.0
LOOK_AGAIN_S = 3600.0

_Seen = TypeVar("_Seen", bound=Object)


async def yield_to_taints(idle: asyncio.Event, at_most_s: float = WAIT_AT_MOST_S) -> None:
    """Until no taint waits to be written, but not for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await idle.wait()


async def finish_write(write: Coroutine[Any, Any, None]) -> None:
    """Raises what it raises. It is not given up in the middle, so that the next leader finds what became of it; each
    call is bounded by its client's own limit."""
    writing = asyncio.create_task(write)
    try:
        await asyncio.wait([writing])
    finally:
        await asyncio.wait([writing])
        error = writing.exception()
    if error is not None:
        raise error


class Rounds:
    """what: is done, for the log; idle: set while no taint waits to be written; least_s: between two rounds.

    changed: names of nodes to look at again, for the round to empty
    """

    def __init__(self, what: str, idle: asyncio.Event, *, least_s: float, backoff: Backoff) -> None:
        self.changed: set[str] = set()
        self._what = what
        self._idle = idle
        self._least_s = least_s
        self._backoff = backoff
        self._failures = 0
        self._wake = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing

    def note(self, name: str) -> None:
        """Something about this node has changed."""
        self.changed.add(name)
        self._wake.set()

    def wake(self) -> None:
        """Something that is no node's own has changed."""
        self._wake.set()

    async def list_marked(
        self, client: KubeClient, path: str, kind: type[_Seen], label: str, observe: Callable[[_Seen], None]
    ) -> None:
        """Before the first round: what the leader before us wrote last (each object of it bears ``label``) may not have
        come by our watch yet, so what the server says counts."""
        await yield_to_taints(self._idle)
        failures = 0
        while True:
            try:
                page = await client.list_page(path, kind, params={"labelSelector": label})
            except (ApiError, ConfigError) as error:
                delay_s = self._backoff.delay_s(failures, self._rng)
                failures += 1
                log.warning("%s: nothing before the server says what is under way; again: %s", self._what, error)
                await asyncio.sleep(delay_s)
            else:
                for each in page.items:
                    observe(each)
                return

    async def run(self, once: Callable[[], Awaitable[float]]) -> None:
        """Until cancelled. once: a round; returns in how many seconds time alone makes the next one, inf for never."""
        while True:
            await self._round(once)

    async def _round(self, once: Callable[[], Awaitable[float]]) -> None:
        await yield_to_taints(self._idle)
        self._wake.clear()
        loop = asyncio.get_running_loop()
        try:
            next_at = loop.time() + min(LOOK_AGAIN_S, max(0.0, await once()))
        except Exception as error:  # the lead, which sets taints, does not end by a mistake made here
            expected = isinstance(error, ApiError | ConfigError)
            log.warning("%s: %s: %s", self._what, type(error).__name__, error, exc_info=None if expected else error)
            delay_s = self._backoff.delay_s(self._failures, self._rng)
            self._failures += 1
            await asyncio.sleep(delay_s)
            return
        self._failures = 0
        await asyncio.sleep(self._least_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_at):
                await self._wake.wait()

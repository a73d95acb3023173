"""Work with a lower priority than taints: round after round, while this process leads.

A round waits, for a limited time, until no taint is pending; then it decides again on everything that changed, and
writes in order. The next round starts on a change or at a given time, with back-off after failures.
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
from muster_kube.controller.reflector import LIST_SILENCE_S

log = logging.getLogger(__name__)

WAIT_AT_MOST_S = 5.0
LOOK_AGAIN_S = 3600.0

_Seen = TypeVar("_Seen", bound=Object)


async def yield_to_taints(idle: asyncio.Event, at_most_s: float = WAIT_AT_MOST_S) -> None:
    """Wait until no taint is pending, at most ``at_most_s``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await idle.wait()


async def finish_write(write: Coroutine[Any, Any, None]) -> None:
    """Run the write to its end even if cancelled, so that the next leader finds its result; the client limits each
    call. Raises what the write raises."""
    writing = asyncio.create_task(write)
    try:
        await asyncio.wait([writing])
    finally:
        await asyncio.wait([writing])
        error = writing.exception()
    if error is not None:
        raise error


class Rounds:
    """what: name of the work, for the log; idle: set while no taint is pending; least_s: between two rounds.

    changed: names of changed nodes, to be emptied by the round
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
        """This node has changed."""
        self.changed.add(name)
        self._wake.set()

    def wake(self) -> None:
        """Something that concerns no single node has changed."""
        self._wake.set()

    async def list_marked(
        self, client: KubeClient, path: str, kind: type[_Seen], label: str, observe: Callable[[_Seen], None]
    ) -> None:
        """Before the first round: list the objects with ``label`` on the server, because our watch may not have
        delivered the previous leader's last writes."""
        await yield_to_taints(self._idle)
        failures = 0
        while True:
            try:
                page = await client.list_page(path, kind, params={"labelSelector": label}, timeout_s=LIST_SILENCE_S)
            except (ApiError, ConfigError) as error:
                delay_s = self._backoff.delay_s(failures, self._rng)
                failures += 1
                log.warning("%s: waiting for the list of pending objects: %s; will retry", self._what, error)
                await asyncio.sleep(delay_s)
            else:
                for each in page.items:
                    observe(each)
                return

    async def run(self, once: Callable[[], Awaitable[float]]) -> None:
        """Runs until cancelled. once: a round; returns the seconds until the next one is due, inf for never."""
        while True:
            await self._round(once)

    async def _round(self, once: Callable[[], Awaitable[float]]) -> None:
        await yield_to_taints(self._idle)
        self._wake.clear()
        loop = asyncio.get_running_loop()
        try:
            next_at = loop.time() + min(LOOK_AGAIN_S, max(0.0, await once()))
        except Exception as error:  # an error here must not end the leadership, which sets taints
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

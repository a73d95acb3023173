"""The IPUs of each V-IPU controller, as the proxy last reported them. Every replica has its own copy.

The proxy is asked when a partition, the quarantine or a node's labels change, and otherwise every REFRESH_S seconds,
because people create partitions in V-IPU by hand.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from muster_operator.job.partition_api import ControllerCapacity, IpuCount, PartitionRefusal

REFRESH_S = 30.0
SPACING_S = 2.0  # between two requests, however often partitions change: V-IPU may start a program for each answer
STALE_S = 120.0  # how long a number counts that nobody confirms: V-IPU restarts in less

Controllers = tuple[ControllerCapacity, ...]


class Source(Protocol):
    """See :class:`muster_operator.act.proxy_client.ProxyClient`."""

    async def controllers(self) -> list[ControllerCapacity] | PartitionRefusal: ...


class IpuCapacity:
    """clock: monotonic seconds. followers: called after each answer of the proxy, and each failure."""

    def __init__(self, source: Source, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._begun = clock()
        self._listed: Controllers | None = None
        self._listed_at = float("-inf")
        self._counted: dict[str, tuple[IpuCount, float]] = {}  # by address: the last numbers, and when they came
        self._wake = asyncio.Event()
        self.error = "the V-IPU proxy has not answered yet"
        self.followers: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            await self.refresh()
            await asyncio.sleep(SPACING_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S - SPACING_S):
                    await self._wake.wait()

    def note_change(self) -> None:
        """The numbers may have changed."""
        self._wake.set()

    async def refresh(self) -> None:
        answer = await self._source.controllers()
        if isinstance(answer, PartitionRefusal):
            self.error = answer.message
        else:
            now = self._clock()
            self._listed, self._listed_at = tuple(answer), now
            self._counted |= {each.controller: (each.ipus, now) for each in answer if each.ipus is not None}
        for follower in self.followers:
            follower()

    @property
    def is_starting(self) -> bool:
        """Nothing is known yet, and the proxy may still answer: no reason to remove what an earlier leader wrote."""
        return self._listed is None and self._clock() - self._begun < STALE_S

    def read(self) -> Controllers | None:
        """In the order in which partitions are placed. A controller that does not answer has its last numbers until
        they are STALE_S seconds old. None: the proxy has not answered for so long; ``error`` says why."""
        now = self._clock()
        if self._listed is None or now - self._listed_at > STALE_S:
            return None
        return tuple(self._with_last_numbers(each, now) for each in self._listed)

    def _with_last_numbers(self, controller: ControllerCapacity, now: float) -> ControllerCapacity:
        ipus, at = self._counted.get(controller.controller, (None, now))
        if controller.ipus is not None or ipus is None or now - at > STALE_S:
            return controller
        return msgspec.structs.replace(controller, ipus=ipus)

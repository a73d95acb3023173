"""Decides when checks may run: several light checks at a time within a share of CPU time; heavy checks one by one on an
idle node, until other work needs it.

CPU time comes from getrusage(2), a system call of microseconds; psutil reads ticks of 10 ms from /proc.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Awaitable, Callable

from muster_agent.idle.occupancy import WHOLE_NODE, Occupancy, RunScope
from muster_checks.base.vocabulary import Result

log = logging.getLogger(__name__)

LOOK_S = 1.5  # interval at which a heavy check looks for work; it gives way within 5 s, including the end of tools
BURST_CPU_S = 30.0  # enough for the first pass of all light checks on a large node


class NodeBusy(Exception):
    """A heavy check was refused or cancelled because of work on the node, which the message names."""


class CpuShare:
    """Limits CPU time to ``share`` of a core on average and ``burst_s`` at once. used: returns CPU seconds so far."""

    def __init__(
        self,
        share: float,
        *,
        burst_s: float = BURST_CPU_S,
        used: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._used = used or cpu_used_s
        self._clock = clock
        self._left = burst_s
        self._at = clock()
        self._used_at = self._used()

    def wait_s(self) -> float:
        """Seconds until CPU time is available; 0: now."""
        now, used = self._clock(), self._used()
        spent = max(0.0, used - self._used_at)
        self._left = min(self._burst_s, self._left + (now - self._at) * self._share) - spent
        self._at, self._used_at = now, used
        return max(0.0, -self._left / self._share)

    def forgive(self) -> None:
        """Ignore the CPU time since the last call, which a heavy check has used."""
        self._used_at = self._used()


def cpu_used_s() -> float:
    """CPU time of this process and its ended children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


class RunQueue:
    """Admits runs on one node. light_at_once: concurrent light checks; cpu: their CPU time."""

    def __init__(
        self,
        occupancy: Occupancy,
        *,
        light_at_once: int,
        cpu: CpuShare,
        look_s: float = LOOK_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.occupancy = occupancy
        self._light = asyncio.Semaphore(light_at_once)
        self._heavy = asyncio.Lock()
        self._cpu = cpu
        self._look_s = look_s
        self._sleep = sleep
        self.running_heavy = ""
        """The running heavy check; empty: none."""

    async def wait_for_processor(self, patience_s: float) -> None:
        """Wait until light checks have CPU time left, but at most ``patience_s``.

        Periodic runs wait here before they enter the queue, so that they do not delay runs requested by users.
        """
        if self.running_heavy:
            self._cpu.forgive()  # tools of the running heavy check
        wait_s = min(self._cpu.wait_s(), patience_s)
        if wait_s > 0:
            await self._sleep(wait_s)

    async def run_light(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run ``work`` when it is its turn."""
        async with self._light:
            return await work()

    async def run_heavy(
        self, name: str, work: Callable[[], Awaitable[Result]], *, force: bool = False, scope: RunScope = WHOLE_NODE
    ) -> Result:
        """Run ``work`` after the heavy checks before it. force: also on a busy node.

        Raises NodeBusy, also during the run: ``work`` is then cancelled, and its tools have ended.
        """
        async with self._heavy:
            if not force and (busy := await self.occupancy.find_work(scope)):
                raise NodeBusy(busy)
            self.running_heavy = name
            try:
                return await work() if force else await self._unless_busy(name, work, scope)
            finally:
                self.running_heavy = ""
                self._cpu.forgive()

    async def _unless_busy(self, name: str, work: Callable[[], Awaitable[Result]], scope: RunScope) -> Result:
        running = asyncio.ensure_future(work())
        try:
            while not (await asyncio.wait([running], timeout=self._look_s))[0]:
                if busy := await self.occupancy.find_foreign_work(scope):
                    log.info("check %s cancelled because the node is busy: %s", name, busy)
                    raise NodeBusy(busy)
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

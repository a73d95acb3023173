"""Who may run when: light checks a few at a time and within a share of the processor, heavy ones one after another on
an idle node, and off again as soon as somebody's work takes it.

Processor time comes from getrusage(2) and not from psutil: microseconds by one system call, where psutil reads ticks of
10 ms from /proc.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Awaitable, Callable

from muster_agent.idle.occupancy import Occupancy
from muster_checks.base.vocabulary import Result

log = logging.getLogger(__name__)

LOOK_S = 1.5  # how often a node under test is looked at: work that comes gets it within 5 s, the end of tools included
BURST_CPU_S = 30.0  # a first pass of all light checks on a large node takes some of it


class NodeBusy(Exception):
    """A heavy check is refused, or was called off: somebody's work is on the node. ``str()``: whose."""


class CpuShare:
    """``share`` of a core on average, ``burst_s`` CPU seconds at once. ``used``: CPU seconds so far, rising."""

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
        """Seconds until there is some left; 0: now."""
        now, used = self._clock(), self._used()
        spent = max(0.0, used - self._used_at)
        self._left = min(self._burst_s, self._left + (now - self._at) * self._share) - spent
        self._at, self._used_at = now, used
        return max(0.0, -self._left / self._share)

    def forgive(self) -> None:
        """What has been used since the last question was a heavy check's."""
        self._used_at = self._used()


def cpu_used_s() -> float:
    """By this process and its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


class RunQueue:
    """Who runs when on one node. ``light_at_once``: side by side; ``cpu``: what light checks may use on average."""

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
        """The heavy check that runs now; empty: none."""

    async def wait_for_processor(self, patience_s: float) -> None:
        """Until the share of light checks has something left, ``patience_s`` at most.

        Before a turn is asked for, not in it: whoever waits takes no turn from people, who wait for none of this.
        """
        if self.running_heavy:
            self._cpu.forgive()  # tools of a heavy check that have ended before it has
        wait_s = min(self._cpu.wait_s(), patience_s)
        if wait_s > 0:
            await self._sleep(wait_s)

    async def run_light(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Runs ``work`` in its turn."""
        async with self._light:
            return await work()

    async def run_heavy(
        self, name: str, work: Callable[[], Awaitable[Result]], *, force: bool = False, beside: str = ""
    ) -> Result:
        """Runs ``work`` when the heavy checks before it are through. ``force``: also beside somebody's work;
        ``beside``: see Occupancy.

        Raises NodeBusy, also in the middle: ``work`` is then cancelled, its tools ended.
        """
        async with self._heavy:
            if not force and (busy := await self.occupancy.find_work(beside)):
                raise NodeBusy(busy)
            self.running_heavy = name
            try:
                return await work() if force else await self._unless_busy(name, work, beside)
            finally:
                self.running_heavy = ""
                self._cpu.forgive()

    async def _unless_busy(self, name: str, work: Callable[[], Awaitable[Result]], beside: str) -> Result:
        running = asyncio.ensure_future(work())
        try:
            while not (await asyncio.wait([running], timeout=self._look_s))[0]:
                if busy := await self.occupancy.find_foreign_work(beside):
                    log.info("check %s gives way: %s", name, busy)
                    raise NodeBusy(busy)
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

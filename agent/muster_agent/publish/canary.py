"""Sends canaries: made-up findings, published beside the checks, that test the way to the taint.

NodeHealth's ``spec.canary`` requests them: one every ``periodSeconds``, and one at once for each new ``id``. Only the
time of the last one is published, so a canary is one write of the NodeHealth, and none while nobody requests any.

With a kernel log echo, the canary begins as a line in /dev/kmsg. It is published once the agent has read the line; if
the agent does not read it, only that is published.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

import msgspec

from muster_agent.clock import AgentClock
from muster_agent.publish.kernel_log_echo import KernelLogEcho
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CanaryReport, CanaryRequest

SHORTEST_S = 5.0  # a shorter period, which only somebody with the right to write the spec can set, would be a load


class Canary:
    """on_change: called when :attr:`report` has changed; echo: None: canaries begin in this process."""

    def __init__(
        self, node: str, clock: AgentClock, on_change: Callable[[], None], echo: KernelLogEcho | None = None
    ) -> None:
        self.report = CanaryReport()
        self._clock = clock
        self._on_change = on_change
        self._served = ""  # the last request
        self._unanswered = ""  # the request that has no result yet
        self._period_s = 0.0
        # nodes send at different times
        self._phase = int.from_bytes(hashlib.sha256(node.encode()).digest()[:4]) / 2**32
        self._changed = asyncio.Event()
        self._echo = echo
        self._wanted = asyncio.Event()  # a line in the kernel log

    def apply(self, request: CanaryRequest, published: CanaryReport) -> None:
        """Apply the NodeHealth. published: what an earlier process of this agent may have sent."""
        if not self.report.at:
            self.report, self._served = published, published.id
        self._unanswered = "" if request.result else request.id
        if self._unanswered and self._unanswered != self._served:
            self._served = self._unanswered
            self._begin()
        period_s = max(float(request.period_seconds), SHORTEST_S) if request.period_seconds > 0 else 0.0
        if period_s != self._period_s:
            self._period_s = period_s
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_period())
            if self._echo is not None:
                group.create_task(self._write_lines(self._echo))

    async def _follow_period(self) -> None:
        while True:
            self._changed.clear()
            period_s, next_at = self._period_s, self._clock.monotonic() + self._period_s * self._phase
            while period_s and not await self._changed_within(next_at - self._clock.monotonic()):
                self._begin()
                next_at += period_s
            if not period_s:
                await self._changed.wait()

    async def _changed_within(self, seconds: float) -> bool:
        """Whether the period has changed within ``seconds``."""
        changed = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait([changed, slept], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (changed, slept):
                each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(changed, slept, return_exceptions=True)
        return self._changed.is_set()

    async def _write_lines(self, echo: KernelLogEcho) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if await echo.is_read():
                self._send()
            else:
                self.report = msgspec.structs.replace(self.report, unread=rfc3339(self._clock.wall()))
                self._on_change()

    def _begin(self) -> None:
        if self._echo is None:
            self._send()
        else:
            self._wanted.set()

    def _send(self) -> None:
        # a periodic one too, because it may replace the requested one before that has been published or decided
        self.report = CanaryReport(id=self._unanswered, at=rfc3339(self._clock.wall()))
        self._on_change()

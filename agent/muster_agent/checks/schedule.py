"""Periodic runs: at a fixed phase of its period, a light check runs and a heavy check becomes due.

The phase is a hash of node and check. So the agents of a fleet are spread evenly over each period without coordination,
and keep their phases over restarts. Checks that share an expensive reading have the same phase.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from math import floor
from typing import Protocol

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from muster_agent.checks.node_check import NodeCheck
from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_checks.base.declaration import Cost

log = logging.getLogger(__name__)

CLOCK_LOOK_S = 15.0
CLOCK_JUMP_S = 1.0  # NTP slews by less than half of that per interval; more means that the clock was set


def phase_s(node: str, name: str, period_s: float) -> float:
    """Offset in seconds from the multiples of ``period_s`` since the epoch."""
    digest = blake2b(f"{node}/{name}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * period_s


class PhasedTrigger(BaseTrigger):  # type: ignore[misc] # the package has no types
    """Fires once in each period, at its phase.

    APScheduler's IntervalTrigger counts from its first run and iterates over all missed runs: after a clock change from
    1970 to today, that would take minutes.
    """

    def __init__(self, phase_s: float, period_s: float) -> None:
        self._phase_s = phase_s
        self._period_s = period_s

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        # the millisecond avoids a second run at once, because datetimes are rounded to microseconds
        after = max(previous_fire_time or now, now).timestamp() + 0.001
        turns = floor((after - self._phase_s) / self._period_s) + 1
        return datetime.fromtimestamp(self._phase_s + turns * self._period_s, UTC)


class TurnHandler(Protocol):
    """Handles the runs of the schedule."""

    async def run_turn(self, check: NodeCheck) -> None:
        """Run a light check. The schedule awaits it, so that a check never overlaps itself."""

    def mark_due(self, name: str) -> None:
        """Mark a heavy check as due."""

    def count_overrun(self, name: str) -> None:
        """A run was skipped because the previous one had not ended."""


class Schedule:
    """periods: seconds by name of the periodic checks."""

    def __init__(
        self,
        node: str,
        checks: Mapping[str, NodeCheck],
        periods: Mapping[str, float],
        handler: TurnHandler,
        clock: AgentClock = SYSTEM_CLOCK,
    ) -> None:
        self._node = node
        self._checks = checks
        self._periods = periods
        self._handler = handler
        self._clock = clock

    async def run(self) -> None:
        """Run until cancelled. The handler cancels runs in progress."""
        # APScheduler logs each run at INFO, each missed run as a warning, and the end of the agent as an error
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        scheduler = AsyncIOScheduler(timezone=UTC)
        scheduler.add_listener(self._left_out, EVENT_JOB_MAX_INSTANCES)
        for name, period_s in self._periods.items():
            scheduler.add_job(
                self._turn,
                self._trigger(name, period_s),
                args=(self._checks[name],),
                id=name,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
                **({"next_run_time": self._now()} if self._is_late(name, period_s) else {}),
            )
        scheduler.start()
        try:
            await self._follow_clock(scheduler)
        finally:
            scheduler.shutdown(wait=False)

    async def _turn(self, running: NodeCheck) -> None:
        if running.check.cost is Cost.HEAVY:
            self._handler.mark_due(running.name)
            return
        try:
            await self._handler.run_turn(running)
        except Exception:
            log.exception("check %s: periodic run failed; the next one is in %g s", running.name, running.period_s)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    def _trigger(self, name: str, period_s: float) -> PhasedTrigger:
        shared = self._checks[name].check.shares or name
        return PhasedTrigger(phase_s(self._node, shared, period_s), period_s)

    def _is_late(self, name: str, period_s: float) -> bool:
        """Whether it has not run in this boot, or a run was missed while no agent was running."""
        since = self._clock.wall() - self._checks[name].ran_at
        return not 0 <= since < period_s

    async def _follow_clock(self, scheduler: AsyncIOScheduler) -> None:
        """Reschedule after clock changes: APScheduler uses the wall clock, and would pause if it is set back."""
        offset = self._clock.wall() - self._clock.monotonic()
        while True:
            await asyncio.sleep(CLOCK_LOOK_S)
            now = self._clock.wall() - self._clock.monotonic()
            if abs(now - offset) > CLOCK_JUMP_S:
                log.warning("the clock was set by %+.0f s; periodic runs are rescheduled", now - offset)
                for name, period_s in self._periods.items():
                    scheduler.reschedule_job(name, trigger=self._trigger(name, period_s))
                offset = now

    def _left_out(self, event: JobSubmissionEvent) -> None:
        self._handler.count_overrun(event.job_id)

"""Keeps quarantined IPUs out of use: V-IPU chooses the IPUs of a partition, so a partition of nobody is put on them.

Should this process die in between, the parked one is settled by itself: there, and kept while one of its IPUs is
quarantined; or not there, and forgotten.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable

from muster_operator.job.names import PARKED_PREFIX
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.controllers.measured_calls import Measured
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.timing import Pace, Turns
from muster_operator.proxy.tracker import entries as tracker
from muster_operator.proxy.tracker.store import Full, Store
from muster_operator.vipu.controller import Ipu, NoRoom, VipuUnreachable

log = logging.getLogger(__name__)

TRIES = 8  # of one partition


class Parking:
    """limit: how many may be parked; on_parked: told names that can be settled from now on, as any other;
    on_unanswered: told one that may yet be made."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        pace: Pace,
        limit: int,
        on_parked: Callable[[Iterable[str]], None],
        on_unanswered: Callable[[str], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._pace = pace
        self._limit = limit
        self._on_parked = on_parked
        self._on_unanswered = on_unanswered
        self.under_way: set[str] = set()
        self._calm: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def calm(self, address: str) -> asyncio.Lock:
        """Held while parks of this controller are made smaller: what is created meanwhile would fall on their IPUs."""
        return self._calm[address]

    async def put_in_place_of(
        self, name: str, entry: PartitionEntry, turns: Turns, controller: Measured
    ) -> PartitionRefusal | None:
        """Remove ``name`` and put another one where it lay, so that it comes to lie elsewhere when it is made again.
        Raises VipuError."""
        turns.parks += 1
        async with self.calm(entry.controller):
            pass
        entries = self._store.entries
        parked = sum(entries[park].state != "deleting" for park in tracker.parked(entries))
        if turns.parks > TRIES or parked >= self._limit:
            told = f"{entry.controller}: V-IPU puts it on quarantined IPUs, and {parked} partitions are parked"
            return PartitionRefusal(why="NoRoom", message=told)
        park = new_name()
        log.warning("partition %s lies on quarantined IPUs of %s: %s is put in its place", name, entry.controller, park)
        self.under_way.add(park)
        try:
            await self.mean(park, name, entry.size, entry.controller)
            await self.remove(name, controller)
            if self._store.entry(name) == entry:
                await self.create(park, entry.size, controller)
                await self.appears(park, controller, lambda: self._store.entry(name) == entry)
        except Full as error:
            return PartitionRefusal(why="Full", message=str(error))
        except NoRoom as error:
            # somebody else was faster: the parked one is forgotten, and this one made elsewhere
            log.info("%s is not made: %s", park, error)
        finally:
            self.under_way.discard(park)
            self._on_parked([park])
        return None

    def look_at(self, names: Iterable[str]) -> None:
        """They can be settled from now on, as any other."""
        self._on_parked(names)

    async def mean(self, park: str, name: str, size: int, address: str) -> None:
        """Written before V-IPU is asked. name: what it is there for. Raises Full."""
        meant = PartitionEntry(
            job=tracker.PARKED,
            namespace="",
            name=name,
            size=size,
            controller=address,
            message="keeps quarantined IPUs out of use",
        )
        await self._store.change(park, lambda now: now or meant)
        self._metrics.intents.labels("park").inc()

    async def create(self, park: str, size: int, controller: Measured) -> None:
        try:
            await controller.create(park, size, 1)
        except VipuUnreachable:
            self._on_unanswered(park)
            raise

    async def remove(self, name: str, controller: Measured, in_time: Callable[[], bool] = lambda: True) -> bool:
        """Whether it has gone, ``in_time``."""
        await controller.remove(name)
        waiting = Turns()
        while await controller.partition(name) is not None:
            if not in_time():
                return False
            await asyncio.sleep(waiting.next_poll_s(self._pace))
        return True

    async def appears(self, name: str, controller: Measured, is_wanted: Callable[[], bool]) -> tuple[Ipu, ...]:
        """On which IPUs it lies, once that is known, or what it makes way for is not wanted any more (then none)."""
        waiting = Turns()
        while is_wanted():
            found = await controller.partition(name)
            if found is None or found.ipus or found.state in ("ACTIVE", "ERROR"):
                return () if found is None else found.ipus
            await asyncio.sleep(waiting.next_poll_s(self._pace))
        return ()


def new_name() -> str:
    return PARKED_PREFIX + secrets.token_hex(4)

"""Keeps quarantined IPUs out of use. V-IPU chooses the IPUs of a partition, so the proxy places a parked partition on
them.

After a crash the parked partition is reconciled: if it exists, it is kept while one of its IPUs is quarantined;
otherwise its entry is removed.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable

from muster_operator.job.names import PARKED_PREFIX
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.intervals import Intervals
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions.progress import PartitionProgress
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.tracker.entries import PARKED_JOB, list_parked
from muster_operator.proxy.tracker.patch import TrackerFull
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import Ipu, NoRoom, VipuUnreachable

log = logging.getLogger(__name__)

ATTEMPTS = 8  # per partition


class ParkKeeper:
    """on_parked: called with names that may be reconciled from now on; on_unanswered: called with a name that V-IPU may
    yet create."""

    def __init__(
        self,
        store: TrackerStore,
        metrics: ProxyMetrics,
        intervals: Intervals,
        quarantined: QuarantinedIpus,
        *,
        on_parked: Callable[[Iterable[str]], None],
        on_unanswered: Callable[[str], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._intervals = intervals
        self._quarantined = quarantined
        self._on_parked = on_parked
        self._on_unanswered = on_unanswered
        self.under_way: set[str] = set()
        self._resize_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def resize_lock(self, address: str) -> asyncio.Lock:
        """Held while parked partitions of this controller shrink: new partitions would land on their IPUs."""
        return self._resize_locks[address]

    async def park_in_place_of(
        self, name: str, entry: PartitionEntry, progress: PartitionProgress, controller: MeasuredController
    ) -> PartitionRefusal | None:
        """Remove ``name`` and create a parked partition in its place, so that it is recreated elsewhere. Raises
        VipuError."""
        progress.parks += 1
        async with self.resize_lock(entry.controller):
            pass
        entries = self._store.entries
        parked = sum(entries[park].state != "deleting" for park in list_parked(entries))
        if progress.parks > ATTEMPTS or parked >= self._quarantined.parked_limit:
            message = (
                f"{entry.controller}: V-IPU places it on quarantined IPUs, and {parked} partitions are parked already"
            )
            return PartitionRefusal(why="NoRoom", message=message)
        park = generate_park_name()
        log.warning("partition %s is on quarantined IPUs of %s: putting %s in its place", name, entry.controller, park)
        self.under_way.add(park)
        try:
            await self.record_intent(park, name, entry.size, entry.controller)
            await self.remove(name, controller)
            if self._store.find_entry(name) == entry:
                await self.create(park, entry.size, controller)
                await self.wait_until_placed(park, controller, lambda: self._store.find_entry(name) == entry)
        except TrackerFull as error:
            return PartitionRefusal(why="Full", message=str(error))
        except NoRoom as error:
            # another partition took the place: remove the parked entry, and create this partition elsewhere
            log.info("%s is not created: %s", park, error)
        finally:
            self.under_way.discard(park)
            self._on_parked([park])
        return None

    def hand_over(self, names: Iterable[str]) -> None:
        """They are reconciled from now on as any other partition."""
        self._on_parked(names)

    async def record_intent(self, park: str, name: str, size: int, address: str) -> None:
        """Written before the call to V-IPU. name: the partition that it replaces. Raises TrackerFull."""
        intent = PartitionEntry(
            job=PARKED_JOB,
            namespace="",
            name=name,
            size=size,
            controller=address,
            message="keeps quarantined IPUs out of use",
        )
        await self._store.change(park, lambda now: now or intent)
        self._metrics.intents.labels("park").inc()

    async def create(self, park: str, size: int, controller: MeasuredController) -> None:
        try:
            await controller.create(park, size, 1)
        except VipuUnreachable:
            self._on_unanswered(park)
            raise

    async def remove(
        self, name: str, controller: MeasuredController, in_time: Callable[[], bool] = lambda: True
    ) -> bool:
        """Returns whether the partition is gone ``in_time``."""
        await controller.remove(name)
        polls = PartitionProgress()
        while await controller.find_partition(name) is not None:
            if not in_time():
                return False
            await asyncio.sleep(polls.next_poll_s(self._intervals))
        return True

    async def wait_until_placed(
        self, name: str, controller: MeasuredController, is_wanted: Callable[[], bool]
    ) -> tuple[Ipu, ...]:
        """The IPUs that it lies on, once known; empty if the partition that it replaces is no longer wanted."""
        polls = PartitionProgress()
        while is_wanted():
            found = await controller.find_partition(name)
            if found is None or found.ipus or found.state in ("ACTIVE", "ERROR"):
                return () if found is None else found.ipus
            await asyncio.sleep(polls.next_poll_s(self._intervals))
        return ()


def generate_park_name() -> str:
    return PARKED_PREFIX + secrets.token_hex(4)

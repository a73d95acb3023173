"""Who waits until a partition is settled, and the refusals that its reconciliation came to."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.tracker.store import TrackerStore

REFUSALS_LIMIT = 4096  # of those who did not wait for it


class PartitionOutcomes:
    def __init__(self, store: TrackerStore) -> None:
        self._store = store
        self._refusals: dict[str, PartitionRefusal] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(
        self, name: str, is_over: Callable[[PartitionEntry | None], bool], timeout_s: float
    ) -> PartitionRefusal | None:
        """Wait until ``is_over`` of the entry, a refusal, which is returned, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while name not in self._refusals and not is_over(self._store.find_entry(name)):
                    moved = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(name, []).append(moved)
                    await moved
        return self._refusals.pop(name, None)

    def notify(self, name: str) -> None:
        """Whoever waits for it looks again."""
        for moved in self._waiting.pop(name, ()):
            if not moved.done():
                moved.set_result(None)

    def refuse(self, name: str, refusal: PartitionRefusal) -> None:
        """For whoever waits for it now, or next."""
        if len(self._refusals) > REFUSALS_LIMIT:
            self._refusals.clear()
        self._refusals[name] = refusal

    def forget(self, name: str) -> None:
        self._refusals.pop(name, None)

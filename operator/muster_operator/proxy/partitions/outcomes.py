"""Lets requests wait until a partition is settled, and keeps refusals from its reconciliation."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.tracker.store import TrackerStore

REFUSALS_LIMIT = 4096  # refusals that no request has picked up


class PartitionOutcomes:
    def __init__(self, store: TrackerStore) -> None:
        self._store = store
        self._refusals: dict[str, PartitionRefusal] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(
        self, name: str, is_over: Callable[[PartitionEntry | None], bool], timeout_s: float
    ) -> PartitionRefusal | None:
        """Wait until ``is_over`` holds for the entry, until a refusal, which is returned, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while name not in self._refusals and not is_over(self._store.find_entry(name)):
                    moved = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(name, []).append(moved)
                    await moved
        return self._refusals.pop(name, None)

    def notify(self, name: str) -> None:
        """Wakes the requests that wait for the partition."""
        for moved in self._waiting.pop(name, ()):
            if not moved.done():
                moved.set_result(None)

    def refuse(self, name: str, refusal: PartitionRefusal) -> None:
        """Stores a refusal for the request that waits now, or for the next one."""
        if len(self._refusals) >= REFUSALS_LIMIT:
            self._refusals.clear()
        self._refusals[name] = refusal

    def forget(self, name: str) -> None:
        self._refusals.pop(name, None)

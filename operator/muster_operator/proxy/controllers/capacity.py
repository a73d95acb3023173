"""The free capacity of the controllers, for /stats, /query and the choice of a controller.

Concurrent requests for the same number share one call, so many clients cost V-IPU one call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from muster_operator.job.partition_api import ControllerCapacity, IpuCount, PartitionCapacity, PartitionRefusal
from muster_operator.proxy.controllers.list_syntax import ControllerEndpoint
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.controllers.registry import ControllerRegistry
from muster_operator.proxy.intervals import Intervals
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.quarantine.quarantined_blocks import (
    IpuLayout,
    QuarantinedBlocks,
    count_quarantined_blocks,
    find_quarantined_blocks,
)
from muster_operator.proxy.tracker.entries import count_used_ipus
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import VipuError, VipuPartition, VipuUnreachable

log = logging.getLogger(__name__)

RELEASE_S = 1.0  # how long to wait for partitions that are being created, and how often
RELEASES = 5
NO_CONTROLLER = "no V-IPU controller is configured"
NONE_QUARANTINED = QuarantinedBlocks()
T = TypeVar("T")


@dataclass(frozen=True)
class _FreeBlocks:
    free: int
    quarantined: QuarantinedBlocks = NONE_QUARANTINED


def _count_usable(blocks: Iterable[_FreeBlocks]) -> int:
    """Usable blocks of all controllers."""
    counted = list(blocks)
    return max(0, sum(each.free for each in counted) - count_quarantined_blocks(each.quarantined for each in counted))


class CapacityCounter:
    """on_listed: called with the partitions of a controller whenever they are listed."""

    def __init__(
        self,
        controllers: ControllerRegistry,
        store: TrackerStore,
        metrics: ProxyMetrics,
        quarantined: QuarantinedIpus,
        intervals: Intervals,
        *,
        on_listed: Callable[[str, Collection[VipuPartition]], None],
    ) -> None:
        self._intervals = intervals
        self._controllers = controllers
        self._store = store
        self._metrics = metrics
        self._quarantined = quarantined
        self._on_listed = on_listed
        self._running: dict[object, asyncio.Task[Any]] = {}
        self._reserved: dict[str, dict[str, int]] = {}
        self._released = asyncio.Event()
        self._has_changed = False
        self._refreshing: asyncio.Task[None] | None = None

    async def count_ipus(self) -> dict[str, dict[str, int]]:
        """IPUs that jobs use, and IPUs that are free and not quarantined, by namespace and in total."""
        available = await self._share("stats", self._count_available)
        used = count_used_ipus(self._store.entries)
        self._metrics.ipus.labels("available").set(available)
        lines = {namespace: {"used": number, "available": available} for namespace, number in used.items()}
        return {**lines, "total": {"used": sum(used.values()), "available": available}}

    def refresh(self) -> None:
        """A partition was added or removed: update the metric of IPUs in the background."""
        self._has_changed = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())

    @property
    def is_busy(self) -> bool:
        return self._refreshing is not None and not self._refreshing.done()

    async def stop(self) -> None:
        tasks = [*self._running.values(), *([self._refreshing] if self._refreshing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def count_partitions(self, size: int) -> PartitionCapacity:
        """Number of partitions of that size that can be created now, one after the other."""
        return await self._share(("query", size), lambda: self._ask_all(size))

    async def count_each(self, max_ipus: int) -> list[ControllerCapacity]:
        """The IPUs of each controller, in the order of the list. max_ipus: the largest partition that is created."""
        return await self._share("controllers", lambda: self._count_each(max_ipus))

    async def choose_controller(
        self, name: str, size: int, skip: Collection[str] = ()
    ) -> ControllerEndpoint | PartitionRefusal:
        """The first controller in the list with enough room, which stays reserved for ``name`` until
        :meth:`cancel_reservation`. skip: addresses that have refused."""
        silent: list[str] = []
        full: list[str] = []
        for endpoint in self._controllers.endpoints:
            if endpoint.address in skip:
                full.append(f"{endpoint.address}: no room")
                continue
            controller = self._controllers.get(endpoint)
            try:
                if await self._wait_in_time(controller, controller.find_partition(name)) is not None:
                    message = (
                        f"{endpoint.address} has a partition {name} that is not in the tracker: remove it from V-IPU"
                    )
                    return PartitionRefusal(why="Refused", message=message)
                blocks = await self._reserve(controller, name, size)
            except VipuUnreachable as error:
                silent.append(str(error))
            except VipuError as error:
                full.append(f"{endpoint.address}: {error}")
            else:
                if blocks is None:
                    return endpoint
                bad = blocks.free - _count_usable([blocks])
                details = f", {bad} of them with quarantined IPUs" if bad else ""
                full.append(f"{endpoint.address}: {blocks.free} free blocks of {size} IPUs{details}")
        if full:
            return PartitionRefusal(why="NoRoom", message="; ".join([*full, *silent]))
        return PartitionRefusal(why="Unreachable", message="; ".join(silent) or NO_CONTROLLER)

    def cancel_reservation(self, name: str) -> None:
        """The reservation ends: V-IPU has the partition, or it is no longer wanted."""
        for reserved in self._reserved.values():
            if reserved.pop(name, None) is not None:
                self._released.set()

    async def _reserve(self, controller: MeasuredController, name: str, size: int) -> _FreeBlocks | None:
        """None: reserved."""
        reserved = self._reserved.setdefault(controller.address, {})
        for _ in range(RELEASES):
            self._released.clear()
            blocks = await self._wait_in_time(controller, self._count_blocks(controller, size))
            # blocks that may belong to another controller do not count here: if they do, the partition is moved
            alone = len(self._controllers.endpoints) == 1
            left = _count_usable([blocks]) if alone else blocks.free - blocks.quarantined.known
            if left > sum(-(-other // size) for key, other in reserved.items() if key != name):
                reserved[name] = size
                return None
            if left <= 0:
                return blocks
            # only partitions that are being created are in the way, or one that exists by now and was counted twice
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._released.wait()
        return blocks

    async def _refresh(self) -> None:
        while self._has_changed:
            await asyncio.sleep(self._intervals.count_s)
            self._has_changed = False
            await self.count_ipus()

    async def _count_available(self) -> int:
        controllers = map(self._controllers.get, self._controllers.endpoints)
        return _count_usable(await asyncio.gather(*map(self._count_free_ipus, controllers)))

    async def _count_free_ipus(self, controller: MeasuredController) -> _FreeBlocks:
        """Free IPUs, as blocks of one."""

        async def count() -> _FreeBlocks:
            partitions = await controller.list_partitions()
            self._on_listed(controller.address, partitions)
            free = (await controller.read_capacity()).free
            if not free:
                return _FreeBlocks(0)
            return _FreeBlocks(free, await self._find_quarantined(controller, partitions, 1))

        try:
            return await self._wait_in_time(controller, count())
        except VipuError as error:
            log.warning("skipping a controller in the count of IPUs: %s", error)
            return _FreeBlocks(0)

    async def _count_each(self, max_ipus: int) -> list[ControllerCapacity]:
        return list(await asyncio.gather(*(self._count_one(each, max_ipus) for each in self._controllers.endpoints)))

    async def _count_one(self, endpoint: ControllerEndpoint, max_ipus: int) -> ControllerCapacity:
        controller = self._controllers.get(endpoint)

        async def count() -> IpuCount:
            partitions = await controller.list_partitions()
            self._on_listed(controller.address, partitions)
            capacity = await controller.read_capacity()

            async def count_usable(size: int, blocks: int) -> int:
                return _count_usable([_FreeBlocks(blocks, await self._find_quarantined(controller, partitions, size))])

            free = await count_usable(1, capacity.free)
            # partitions are powers of two; a smaller one fits wherever a larger one does
            size = 1 << (min(free, max_ipus).bit_length() - 1) if free else 0
            while size and not await count_usable(size, await controller.count_free_blocks(size)):
                size //= 2
            return IpuCount(capacity.total, free, size)

        try:
            ipus = await self._wait_in_time(controller, count())
        except VipuError as error:
            return ControllerCapacity(endpoint.address, endpoint.selector, message=str(error))
        return ControllerCapacity(endpoint.address, endpoint.selector, ipus)

    async def _ask_all(self, size: int) -> PartitionCapacity:
        async def ask(endpoint: ControllerEndpoint) -> _FreeBlocks | str:
            try:
                controller = self._controllers.get(endpoint)
                return await self._wait_in_time(controller, self._count_blocks(controller, size))
            except VipuError as error:
                return str(error) if endpoint.address in str(error) else f"{endpoint.address}: {error}"

        answers = await asyncio.gather(*map(ask, self._controllers.endpoints))
        complaints = [each for each in answers if isinstance(each, str)]
        blocks = [each for each in answers if isinstance(each, _FreeBlocks)]
        message = "; ".join(complaints) or ("" if blocks else NO_CONTROLLER)
        return PartitionCapacity(available=bool(blocks), num_of_partitions=_count_usable(blocks), message=message)

    async def _count_blocks(self, controller: MeasuredController, size: int) -> _FreeBlocks:
        free = await controller.count_free_blocks(size)
        if not free or not self._quarantined.current:
            return _FreeBlocks(free)
        return _FreeBlocks(free, await self._find_quarantined(controller, await controller.list_partitions(), size))

    async def _find_quarantined(
        self, controller: MeasuredController, partitions: Collection[VipuPartition], size: int
    ) -> QuarantinedBlocks:
        quarantined = self._quarantined.current
        if not quarantined:
            return NONE_QUARANTINED
        return find_quarantined_blocks(IpuLayout.of(await controller.list_ipus(), partitions), quarantined, size)

    async def _wait_in_time(self, controller: MeasuredController, answer: Awaitable[T]) -> T:
        """Raises VipuUnreachable after answer_s, because the client waits for all controllers."""
        try:
            async with asyncio.timeout(self._intervals.answer_s):
                return await answer
        except TimeoutError as error:
            message = f"{controller.address}: no answer within {self._intervals.answer_s:g} s"
            raise VipuUnreachable(message) from error

    async def _share(self, question: object, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = self._running.get(question)
        if task is None:
            task = self._running[question] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._running.pop(question, None))
        # a client that disconnects must not cancel the answer of the others
        return await asyncio.shield(task)

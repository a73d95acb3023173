"""How much room the controllers have: for /stats and /query, and to choose one. Asks V-IPU; decides nothing by itself.

Who asks while the same question is under way shares its answer, so a crowd costs V-IPU one call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from muster_operator.job.partition_api import PartitionCapacity, PartitionRefusal
from muster_operator.proxy.controllers.list_syntax import Place
from muster_operator.proxy.controllers.measured_calls import Measured
from muster_operator.proxy.controllers.reachable import Reaching
from muster_operator.proxy.free_capacity import Layout, Spoilt, spoilt, spoilt_in_all
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.timing import Pace
from muster_operator.proxy.tracker import entries as tracker
from muster_operator.proxy.tracker.store import Store
from muster_operator.vipu.controller import Ipu, VipuError, VipuPartition, VipuUnreachable

log = logging.getLogger(__name__)

RELEASE_S = 1.0  # to wait for what others are just making, so many times
RELEASES = 5
NO_CONTROLLER = "no V-IPU controller is configured"
NOTHING_SPOILT = Spoilt()
T = TypeVar("T")


@dataclass(frozen=True)
class _Blocks:
    free: int
    spoilt: Spoilt = NOTHING_SPOILT


def _left(blocks: Iterable[_Blocks]) -> int:
    """Usable ones over all controllers."""
    found = list(blocks)
    return max(0, sum(each.free for each in found) - spoilt_in_all(each.spoilt for each in found))


class Counting:
    """quarantined: the IPUs that are kept out now; on_listed: told what a controller has, whenever that was asked."""

    def __init__(
        self,
        reaching: Reaching,
        store: Store,
        metrics: Metrics,
        quarantined: Callable[[], Collection[Ipu]],
        on_listed: Callable[[str, Collection[VipuPartition]], None],
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._reaching = reaching
        self._store = store
        self._metrics = metrics
        self._quarantined = quarantined
        self._on_listed = on_listed
        self._under_way: dict[object, asyncio.Task[Any]] = {}
        self._reserved: dict[str, dict[str, int]] = {}
        self._released = asyncio.Event()
        self._has_changed = False
        self._refreshing: asyncio.Task[None] | None = None

    async def stats(self) -> dict[str, dict[str, int]]:
        """By namespace, and in total: IPUs that jobs of ours use, and that are free and not quarantined."""
        available = await self._shared("stats", self._available)
        used = tracker.used(self._store.entries)
        self._metrics.ipus.labels("available").set(available)
        lines = {namespace: {"used": number, "available": available} for namespace, number in used.items()}
        return {**lines, "total": {"used": sum(used.values()), "available": available}}

    def refresh(self) -> None:
        """Something has become or gone: what the metric says of IPUs is brought up to date, beside everything else."""
        self._has_changed = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())

    @property
    def is_busy(self) -> bool:
        return self._refreshing is not None and not self._refreshing.done()

    async def stop(self) -> None:
        tasks = [*self._under_way.values(), *([self._refreshing] if self._refreshing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def query(self, size: int) -> PartitionCapacity:
        """How many partitions of that size could be made now, one after the other."""
        return await self._shared(("query", size), lambda: self._query(size))

    async def choose(self, name: str, size: int, skip: Collection[str] = ()) -> Place | PartitionRefusal:
        """The first controller of the list with room for it, which is kept for ``name`` until :meth:`release`. skip:
        addresses that have said no."""
        silent: list[str] = []
        full: list[str] = []
        for place in self._reaching.places:
            if place.address in skip:
                full.append(f"{place.address}: no room")
                continue
            controller = self._reaching.of(place)
            try:
                if await self._in_time(controller, controller.partition(name)) is not None:
                    told = f"{place.address} has a partition {name} that the tracker does not know: remove it there"
                    return PartitionRefusal(why="Refused", message=told)
                blocks = await self._reserve(controller, name, size)
            except VipuUnreachable as error:
                silent.append(str(error))
            except VipuError as error:
                full.append(f"{place.address}: {error}")
            else:
                if blocks is None:
                    return place
                bad = blocks.free - _left([blocks])
                spoils = f", {bad} of them with quarantined IPUs" if bad else ""
                full.append(f"{place.address}: {blocks.free} free blocks of {size} IPUs{spoils}")
        if full:
            return PartitionRefusal(why="NoRoom", message="; ".join([*full, *silent]))
        return PartitionRefusal(why="Unreachable", message="; ".join(silent) or NO_CONTROLLER)

    def release(self, name: str) -> None:
        """What was kept for it: V-IPU has it, or nobody wants it any more."""
        for reserved in self._reserved.values():
            if reserved.pop(name, None) is not None:
                self._released.set()

    async def _reserve(self, controller: Measured, name: str, size: int) -> _Blocks | None:
        """None: it is reserved."""
        reserved = self._reserved.setdefault(controller.address, {})
        for _ in range(RELEASES):
            self._released.clear()
            blocks = await self._in_time(controller, self._blocks(controller, size))
            # what may be another controller's spoils nothing here: should it, the partition is moved
            alone = len(self._reaching.places) == 1
            left = _left([blocks]) if alone else blocks.free - blocks.spoilt.known
            if left > sum(-(-other // size) for key, other in reserved.items() if key != name):
                reserved[name] = size
                return None
            if left <= 0:
                return blocks
            # only what is just being made stands in the way, or stands there already and was counted twice
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._released.wait()
        return blocks

    async def _refresh(self) -> None:
        while self._has_changed:
            await asyncio.sleep(self._pace.count_s)
            self._has_changed = False
            await self.stats()

    async def _available(self) -> int:
        return _left(await asyncio.gather(*(self._free(self._reaching.of(place)) for place in self._reaching.places)))

    async def _free(self, controller: Measured) -> _Blocks:
        """IPUs, as blocks of one."""

        async def count() -> _Blocks:
            partitions = await controller.partitions()
            self._on_listed(controller.address, partitions)
            free = (await controller.capacity()).free
            return _Blocks(free, await self._spoilt(controller, partitions, 1) if free else Spoilt())

        try:
            return await self._in_time(controller, count())
        except VipuError as error:
            log.warning("its IPUs are not counted: %s", error)
            return _Blocks(0)

    async def _query(self, size: int) -> PartitionCapacity:
        async def ask(place: Place) -> _Blocks | str:
            try:
                controller = self._reaching.of(place)
                return await self._in_time(controller, self._blocks(controller, size))
            except VipuError as error:
                return str(error) if place.address in str(error) else f"{place.address}: {error}"

        answers = await asyncio.gather(*map(ask, self._reaching.places))
        complaints = [each for each in answers if isinstance(each, str)]
        blocks = [each for each in answers if isinstance(each, _Blocks)]
        message = "; ".join(complaints) or ("" if blocks else NO_CONTROLLER)
        return PartitionCapacity(available=bool(blocks), num_of_partitions=_left(blocks), message=message)

    async def _blocks(self, controller: Measured, size: int) -> _Blocks:
        free = await controller.free_blocks(size)
        if not free or not self._quarantined():
            return _Blocks(free)
        return _Blocks(free, await self._spoilt(controller, await controller.partitions(), size))

    async def _spoilt(self, controller: Measured, partitions: Collection[VipuPartition], size: int) -> Spoilt:
        quarantined = self._quarantined()
        if not quarantined:
            return Spoilt()
        return spoilt(Layout.of(await controller.ipus(), partitions), quarantined, size)

    async def _in_time(self, controller: Measured, answer: Awaitable[T]) -> T:
        """Raises VipuUnreachable: whoever asks waits for all controllers, and some answer."""
        try:
            async with asyncio.timeout(self._pace.answer_s):
                return await answer
        except TimeoutError as error:
            told = f"{controller.address}: no answer within {self._pace.answer_s:g} s"
            raise VipuUnreachable(told) from error

    async def _shared(self, question: object, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = self._under_way.get(question)
        if task is None:
            task = self._under_way[question] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._under_way.pop(question, None))
        # whoever hangs up does not take the others' answer with them
        return await asyncio.shield(task)

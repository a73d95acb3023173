"""What the operator asks for: to take a partition, and to let it go. Intents are written here, settled elsewhere."""

import asyncio
from dataclasses import dataclass

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.proxy.controllers.capacity import Counting
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.partitions.reconciler import Settling
from muster_operator.proxy.tracker.decisions import answer, begun, freed, invalid
from muster_operator.proxy.tracker.store import Decide, Full, Store, Unreadable

WRITE_S = 10.0  # for an intent: longer, and whoever asks is told that the API server is away
WAIT_S = 2.0  # for V-IPU


class _No(Exception):
    def __init__(self, refusal: PartitionRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True)
class Waits:
    """Seconds: for the tracker's write, and for V-IPU after it."""

    write_s: float = WRITE_S
    vipu_s: float = WAIT_S


class Taking:
    def __init__(
        self,
        store: Store,
        counting: Counting,
        settling: Settling,
        metrics: Metrics,
        *,
        max_ipus: int,
        waits: Waits = Waits(),
    ) -> None:
        self._store = store
        self._counting = counting
        self._settling = settling
        self._metrics = metrics
        self._max_ipus = max_ipus
        self._waits = waits

    async def take(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        """The entry, active or on its way; or why not. The same wish twice changes nothing."""
        taken = invalid(name, wish, self._max_ipus) or await self._take(name, wish)
        if isinstance(taken, PartitionRefusal):
            self._metrics.refusals.labels(taken.why).inc()
        return taken

    async def free(self, name: str, job: str) -> PartitionEntry | PartitionRefusal | None:
        """None: it is gone, or never was; the entry: under way; or why not."""
        if not job:
            return PartitionRefusal(why="Invalid", message="job: expected the job's uid, as ?job=UID")

        def let_go(now: PartitionEntry | None) -> PartitionEntry | None:
            changed = freed(name, job, now)
            if isinstance(changed, PartitionRefusal):
                raise _No(changed)
            return changed

        if self._store.entry(name) is None and name not in self._store.unreadable:
            return None if self._store.loaded else _not_known(self._store)
        try:
            before = self._store.entry(name)
            entry = await self._written(name, let_go)
        except _No as no:
            return no.refusal
        if entry is None:
            return None
        if before is None or before.state != "deleting":
            self._metrics.intents.labels("delete").inc()
        self._settling.wake([name])
        await self._settling.settled(name, lambda now: now is None or now.job != job, self._waits.vipu_s)
        now = self._store.entry(name)
        return None if now is None or now.job != job else now

    async def _take(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        if not self._store.loaded:
            return _not_known(self._store)
        known = self._store.entry(name)
        answered = answer(name, wish, known)
        if isinstance(answered, PartitionRefusal):
            return answered
        if answered is None:
            return await self._begin(name, wish)
        if answered is not known:

            def again(now: PartitionEntry | None) -> PartitionEntry | None:
                changed = answer(name, wish, now)
                if isinstance(changed, PartitionRefusal):
                    raise _No(changed)
                return changed

            try:
                written = await self._written(name, again)
            except _No as no:
                return no.refusal
            if written is None:
                return PartitionRefusal(why="Refused", message=f"partition {name} has just gone: ask again")
            self._metrics.intents.labels("reset").inc()
        return await self._until_active(name, wish)

    async def _begin(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        place = (
            PartitionRefusal(
                why="Refused", message=f"tracker entry {name} cannot be read: {self._store.unreadable[name]}"
            )
            if name in self._store.unreadable
            else await self._counting.choose(name, wish.size)
        )
        if isinstance(place, PartitionRefusal):
            # the same wish that came twice: the other one has made it meanwhile
            return place if self._store.entry(name) is None else await self._take(name, wish)
        meant = begun(wish, place.address, place.selector)

        def begin(now: PartitionEntry | None) -> PartitionEntry | None:
            changed = answer(name, wish, now)
            if isinstance(changed, PartitionRefusal):
                raise _No(changed)
            if changed is None:
                # before anybody can see it: the watch may bring it before this caller goes on
                self._settling.begun(name)
                return meant
            return changed

        try:
            await self._written(name, begin)
        except _No as no:
            self._counting.release(name)
            return no.refusal
        self._metrics.intents.labels("create").inc()
        return await self._until_active(name, wish)

    async def _until_active(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        entry = self._store.entry(name)
        if entry is not None and entry.state == "active":
            self._counting.release(name)  # of another such wish, which has met this one
            return entry
        self._settling.wake([name])
        refusal = await self._settling.settled(
            name, lambda now: now is None or now.state != "creating", self._waits.vipu_s
        )
        if refusal is not None:
            return refusal
        now = self._store.entry(name)
        answered = answer(name, wish, now)
        return answered or PartitionRefusal(why="Refused", message=f"partition {name} was removed meanwhile")

    async def _written(self, name: str, decide: Decide) -> PartitionEntry | None:
        try:
            async with asyncio.timeout(self._waits.write_s):
                return await self._store.change(name, decide)
        except TimeoutError as error:
            told = f"the tracker {self._store.name} cannot be written: {self._store.error or 'no answer yet'}"
            raise _No(PartitionRefusal(why="Unreachable", message=told)) from error
        except Full as error:
            raise _No(PartitionRefusal(why="Full", message=str(error))) from error
        except Unreadable as error:
            raise _No(PartitionRefusal(why="Refused", message=str(error))) from error


def _not_known(store: Store) -> PartitionRefusal:
    return PartitionRefusal(why="Unreachable", message=f"the tracker {store.name} is not known yet: {store.error}")

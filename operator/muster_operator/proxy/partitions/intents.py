"""Handles the operator's requests to take and release partitions. It writes the intents; the reconciler carries them
out."""

import asyncio

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.proxy.controllers.capacity import CapacityCounter
from muster_operator.proxy.intervals import RequestTimeouts
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions.reconciler import PartitionReconciler
from muster_operator.proxy.tracker.decisions import answer_request, create_entry, release_entry, validate_request
from muster_operator.proxy.tracker.patch import EntryDecision, EntryUnreadable, TrackerFull
from muster_operator.proxy.tracker.store import TrackerStore


class _Refused(Exception):
    def __init__(self, refusal: PartitionRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class PartitionIntents:
    def __init__(
        self,
        store: TrackerStore,
        capacity: CapacityCounter,
        reconciler: PartitionReconciler,
        metrics: ProxyMetrics,
        *,
        max_ipus: int,
        timeouts: RequestTimeouts,
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._reconciler = reconciler
        self._metrics = metrics
        self._max_ipus = max_ipus
        self._timeouts = timeouts

    async def request(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        """The entry, active or in progress, or a refusal. Idempotent."""
        answer = validate_request(name, wish, self._max_ipus) or await self._request(name, wish)
        if isinstance(answer, PartitionRefusal):
            self._metrics.refusals.labels(answer.why).inc()
        return answer

    async def release(self, name: str, job: str) -> PartitionEntry | PartitionRefusal | None:
        """None: the partition is gone or never existed; an entry: its removal is in progress; otherwise a refusal."""
        if not job:
            return PartitionRefusal(why="Invalid", message="job: expected the job's uid, as ?job=UID")

        def release(now: PartitionEntry | None) -> PartitionEntry | None:
            changed = release_entry(name, job, now)
            if isinstance(changed, PartitionRefusal):
                raise _Refused(changed)
            return changed

        if self._store.find_entry(name) is None and name not in self._store.unreadable:
            return None if self._store.is_loaded else _refuse_unloaded(self._store)
        try:
            before = self._store.find_entry(name)
            entry = await self._write(name, release)
        except _Refused as refused:
            return refused.refusal
        if entry is None:
            return None
        if before is None or before.state != "deleting":
            self._metrics.intents.labels("delete").inc()
        self._reconciler.wake([name])
        await self._reconciler.outcomes.wait(name, lambda now: now is None or now.job != job, self._timeouts.vipu_s)
        now = self._store.find_entry(name)
        return None if now is None or now.job != job else now

    async def _request(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        if not self._store.is_loaded:
            return _refuse_unloaded(self._store)
        known = self._store.find_entry(name)
        answered = answer_request(name, wish, known)
        if isinstance(answered, PartitionRefusal):
            return answered
        if answered is None:
            return await self._create(name, wish)
        if answered is not known:

            def reset(now: PartitionEntry | None) -> PartitionEntry | None:
                changed = answer_request(name, wish, now)
                if isinstance(changed, PartitionRefusal):
                    raise _Refused(changed)
                return changed

            try:
                written = await self._write(name, reset)
            except _Refused as refused:
                return refused.refusal
            if written is None:
                return PartitionRefusal(
                    why="Refused", message=f"partition {name} has just been removed: send the request again"
                )
            self._metrics.intents.labels("reset").inc()
        return await self._wait_until_active(name, wish)

    async def _create(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        endpoint = (
            PartitionRefusal(
                why="Refused", message=f"tracker entry {name} cannot be read: {self._store.unreadable[name]}"
            )
            if name in self._store.unreadable
            else await self._capacity.choose_controller(name, wish.size)
        )
        if isinstance(endpoint, PartitionRefusal):
            # a concurrent identical request may have created it meanwhile
            return endpoint if self._store.find_entry(name) is None else await self._request(name, wish)
        intent = create_entry(wish, endpoint.address, endpoint.selector)

        def begin(now: PartitionEntry | None) -> PartitionEntry | None:
            changed = answer_request(name, wish, now)
            if isinstance(changed, PartitionRefusal):
                raise _Refused(changed)
            if changed is None:
                # before the entry becomes visible: the watch may deliver it before this call continues
                self._reconciler.note_begun(name)
                return intent
            return changed

        try:
            await self._write(name, begin)
        except _Refused as refused:
            self._capacity.cancel_reservation(name)
            return refused.refusal
        self._metrics.intents.labels("create").inc()
        return await self._wait_until_active(name, wish)

    async def _wait_until_active(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        entry = self._store.find_entry(name)
        if entry is not None and entry.state == "active":
            self._capacity.cancel_reservation(name)  # of a concurrent identical request
            return entry
        self._reconciler.wake([name])
        refusal = await self._reconciler.outcomes.wait(
            name, lambda now: now is None or now.state != "creating", self._timeouts.vipu_s
        )
        if refusal is not None:
            return refusal
        now = self._store.find_entry(name)
        answered = answer_request(name, wish, now)
        return answered or PartitionRefusal(why="Refused", message=f"partition {name} was removed meanwhile")

    async def _write(self, name: str, decide: EntryDecision) -> PartitionEntry | None:
        try:
            async with asyncio.timeout(self._timeouts.write_s):
                return await self._store.change(name, decide)
        except TimeoutError as error:
            message = f"cannot write the tracker {self._store.name}: {self._store.error or 'no answer yet'}"
            raise _Refused(PartitionRefusal(why="Unreachable", message=message)) from error
        except TrackerFull as error:
            raise _Refused(PartitionRefusal(why="Full", message=str(error))) from error
        except EntryUnreadable as error:
            raise _Refused(PartitionRefusal(why="Refused", message=str(error))) from error


def _refuse_unloaded(store: TrackerStore) -> PartitionRefusal:
    return PartitionRefusal(why="Unreachable", message=f"the tracker {store.name} is not loaded yet: {store.error}")

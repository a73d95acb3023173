"""Brings V-IPU to the state in the tracker, with one task for each partition in a passing state.

Each turn looks at the entry, asks V-IPU for that name, and takes one step, so another process can continue after a
crash. While every entry is settled, no task runs and V-IPU is not called.
"""

import asyncio
import logging
import random
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from muster_kube.controller.backoff import Backoff
from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, ipus_text
from muster_operator.proxy.controllers.capacity import CapacityCounter
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.controllers.registry import ControllerRegistry
from muster_operator.proxy.intervals import Intervals
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions.outcomes import PartitionOutcomes
from muster_operator.proxy.partitions.park_resize import ParkResizer
from muster_operator.proxy.partitions.parks import ParkKeeper
from muster_operator.proxy.partitions.progress import PartitionProgress
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.tracker.decisions import PartitionAction, decide_action, describe_sickness, mark_deleting
from muster_operator.proxy.tracker.entries import list_parked
from muster_operator.proxy.tracker.patch import EntryUnreadable, TrackerFull
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import (
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)

log = logging.getLogger(__name__)

MADE_AGAIN = "V-IPU no longer had it: created again"


class _Turn(NamedTuple):
    """One step for one partition: its entry at the start of the turn, and its controller."""

    name: str
    entry: PartitionEntry
    progress: PartitionProgress
    controller: MeasuredController


class PartitionReconciler:
    def __init__(
        self,
        store: TrackerStore,
        controllers: ControllerRegistry,
        capacity: CapacityCounter,
        metrics: ProxyMetrics,
        quarantined: QuarantinedIpus,
        intervals: Intervals,
    ) -> None:
        self._store = store
        self._controllers = controllers
        self._capacity = capacity
        self._metrics = metrics
        self._quarantined = quarantined
        self._intervals = intervals
        self._retries = Backoff(intervals.retry_s, intervals.retry_cap_s)
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, PartitionProgress] = {}
        # until when an unanswered creation may still happen, on the event loop's clock; outlives what was made instead
        self._late_until: dict[str, float] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._parks = ParkKeeper(
            store, metrics, intervals, quarantined, on_parked=self.verify, on_unanswered=self._note_unanswered_creation
        )
        self._resizer = ParkResizer(store, self._parks)
        self._is_ready = asyncio.Event()
        self._is_stopped = False
        self.outcomes = PartitionOutcomes(store)

    # -- interface

    def wake(self, names: Iterable[str]) -> None:
        """The entries of these partitions have changed."""
        for name in () if self._is_stopped else names:
            self._wakes.setdefault(name, asyncio.Event()).set()
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._reconcile(name))

    def note_begun(self, name: str) -> None:
        """The intent to create it was just written, and V-IPU has not been called yet."""
        self._progress[name] = PartitionProgress(is_sure=True)
        self.outcomes.forget(name)

    def verify(self, names: Iterable[str]) -> None:
        """Check whether V-IPU has what the tracker contains."""
        names = list(names)
        for name in names:
            self._progress.setdefault(name, PartitionProgress()).verify = True
        self.wake(names)

    def verify_parked(self) -> None:
        """The quarantine has changed."""
        self._resizer.given_up.clear()
        self.verify(list_parked(self._store.entries))

    def verify_listed(self, address: str, partitions: Collection[VipuPartition]) -> None:
        """Verify the active partitions that this list of a controller lacks."""
        there = {each.name for each in partitions}
        self.verify(
            name
            for name, entry in self._store.entries.items()
            if entry.state == "active" and entry.controller == address and name not in there
        )

    @property
    def is_ready(self) -> bool:
        """Whether the quarantine is known; nothing is reconciled before."""
        return self._is_ready.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether a partition is being reconciled."""
        return bool(self._tasks)

    async def verify_all(self) -> None:
        """Compare every entry with V-IPU at the start, once the quarantine is known; active ones with one call per
        controller. Nothing is reconciled before."""
        self._is_ready.set()
        entries = dict(self._store.entries)
        # the process before this one may have ended while V-IPU had not answered
        self._late_until |= dict.fromkeys(entries, asyncio.get_running_loop().time() + self._intervals.late_s)
        self.wake(name for name, entry in entries.items() if entry.state != "active" or is_parked(name))
        self.verify(list_parked(entries))
        active = {entry.controller for entry in entries.values() if entry.state == "active"}
        await asyncio.gather(*map(self._verify_controller, active))

    async def stop(self) -> None:
        """Every intent is in the tracker, so the next process continues."""
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify_controller(self, address: str) -> None:
        controller = self._controllers.find(address)
        failures = 0
        while controller is not None:
            try:
                self.verify_listed(address, await controller.list_partitions())
            except VipuError as error:
                delay_s = self._retries.delay_s(failures, self._rng)
                if not failures:
                    log.warning("cannot verify active partitions: %s; retrying in %.1f s", error, delay_s)
                failures += 1
                await asyncio.sleep(delay_s)
            else:
                return

    # -- one partition

    async def _reconcile(self, name: str) -> None:
        """Runs until the partition is settled and has not been woken meanwhile."""
        wake = self._wakes[name]
        try:
            await self._is_ready.wait()
            while True:
                wake.clear()
                wait_s = await self._take_turn(name)
                self.outcomes.notify(name)
                if wait_s is None:
                    self._capacity.refresh()
                    if not wake.is_set():
                        return
                elif wait_s > 0:
                    await _wait_for_either(wake, wait_s)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("partition %s: internal error; retrying when its entry changes", name)
        finally:
            self._capacity.cancel_reservation(name)
            del self._tasks[name]
            del self._wakes[name]
            if self._store.find_entry(name) is None or not self._progress.get(name, PartitionProgress()).verify:
                self._progress.pop(name, None)

    async def _take_turn(self, name: str) -> float | None:
        """Seconds until the next turn; None: settled."""
        progress = self._progress.setdefault(name, PartitionProgress())
        entry = self._store.find_entry(name)
        is_lost = name in self._store.lost
        if (
            entry is None
            or name in self._parks.under_way
            or (entry.state == "active" and not progress.verify and not is_lost)
        ):
            return None
        controller = self._controllers.find(entry.controller)
        if controller is None:
            return await self._report_bad_address(name, entry)
        turn = _Turn(name, entry, progress, controller)
        try:
            found = await controller.find_partition(name)
            if self._store.find_entry(name) != entry:
                return 0
            if is_lost:
                return await self._reconcile_lost(name, found)
            return await self._act(turn, found)
        except VipuUnreachable as error:
            return await self._retry_later(turn, f"V-IPU controller {controller.address}: no answer", error)
        except VipuError as error:
            return await self._retry_later(turn, str(error), error)
        except (TrackerFull, EntryUnreadable) as error:
            log.warning("partition %s: %s", name, error)
            return None

    async def _act(self, turn: _Turn, found: VipuPartition | None) -> float | None:
        """One step. Raises VipuError."""
        name, entry, progress, controller = turn
        if found is not None and found.state == "RESETTING" and entry.reset:
            progress.fresh = entry.attempt  # the partition is clean after this reset, even if another process began it
        if found is not None and progress.is_only_unanswered:
            progress.is_only_unanswered = False
            self._late_until.pop(name, None)  # this is the result of the unanswered call
        is_fresh = progress.fresh == entry.attempt
        action = decide_action(name, entry, found, self._quarantined.current, is_fresh=is_fresh)
        log.debug("partition %s: %s, V-IPU: %s: %s", name, entry.state, found.state if found else "none", action.value)
        if action not in (PartitionAction.WAIT, PartitionAction.REMOVE, PartitionAction.DROP):
            progress.polls = 0
        match action:
            case PartitionAction.WAIT:
                return progress.next_poll_s(self._intervals)
            case PartitionAction.DONE:
                progress.verify = False
                return None
            case PartitionAction.CREATE:
                return await self._create(turn)
            case PartitionAction.RESET:
                await controller.reset(name)
                progress.fresh = entry.attempt
                return progress.next_poll_s(self._intervals)
            case PartitionAction.REMOVE:
                sick = describe_sickness(entry, found, is_fresh=is_fresh)
                if sick and not progress.is_sick:
                    # retry with back-off, otherwise a faulty IPU would be trained endlessly
                    progress.is_sick = True
                    raise VipuError(f"V-IPU: {sick}: it will be removed and created again")
                progress.is_sick = False
                await controller.remove(name)
                return progress.next_poll_s(self._intervals)
            case PartitionAction.PARK:
                refusal = await self._parks.park_in_place_of(name, entry, progress, controller)
                if refusal is not None:
                    progress.is_sure = False  # V-IPU has it
                    return await self._withdraw(turn, refusal)
            case PartitionAction.DROP:
                if self._late_until.get(name, 0.0) > asyncio.get_running_loop().time():
                    # a partition that V-IPU creates late would have no entry
                    return progress.next_poll_s(self._intervals)
                await self._store.change(name, lambda now: None if now == entry else now)
                self._late_until.pop(name, None)
                log.info("partition %s is removed", name)
                return None
            case PartitionAction.ACTIVATE:
                message = entry.message if entry.message == MADE_AGAIN or is_parked(name) else ""
                lies_on = ipus_text((ipu.machine, ipu.index) for ipu in found.ipus) if found is not None else ""
                await self._write(name, entry, state="active", reset=False, message=message, ipus=lies_on)
                log.info("partition %s is active on %s", name, entry.controller)
            case PartitionAction.REMAKE:
                log.error("partition %s, active on %s, is missing in V-IPU: creating it again", name, entry.controller)
                self._metrics.vanished.inc()
                await self._write(name, entry, state="creating", reset=False, message=MADE_AGAIN)
            case PartitionAction.SHRINK:
                return await self._resize_park(turn, found)
            case PartitionAction.RELEASE:
                log.info("parked partition %s: its IPUs are no longer quarantined", name)
                await self._write(name, entry, state="deleting", message="no longer quarantined")
        if action is PartitionAction.ACTIVATE:
            progress.failures = 0
        return 0

    async def _create(self, turn: _Turn) -> float | None:
        name, entry, progress, controller = turn
        try:
            async with self._parks.resize_lock(entry.controller):
                if self._store.find_entry(name) != entry:
                    return 0
                await controller.create(name, entry.size, entry.gcds)
        except PartitionExists:
            return progress.next_poll_s(self._intervals)  # by a call without an answer
        except VipuUnreachable:
            self._note_unanswered_creation(name)
            raise
        except NoRoom as error:
            return await self._try_next_controller(turn, str(error))
        except VipuError as error:
            return await self._withdraw(turn, PartitionRefusal(why="Refused", message=str(error)))
        finally:
            self._capacity.cancel_reservation(name)
        progress.fresh, progress.is_only_unanswered = entry.attempt, False
        return progress.next_poll_s(self._intervals)

    async def _resize_park(self, turn: _Turn, found: VipuPartition | None) -> float | None:
        name, entry, progress, controller = turn
        if found is None or entry.controller in self._resizer.given_up:
            progress.verify = False
            return None
        if not self._resizer.can_resize(entry.controller):
            return progress.next_poll_s(self._intervals)
        await self._resizer.shrink(name, found.ipus, self._quarantined.current, controller)
        return 0

    def _note_unanswered_creation(self, name: str) -> None:
        progress = self._progress.setdefault(name, PartitionProgress())
        now = asyncio.get_running_loop().time()
        progress.is_sure, progress.is_only_unanswered = False, self._late_until.get(name, 0.0) <= now
        self._late_until[name] = now + self._intervals.late_s

    async def _try_next_controller(self, turn: _Turn, reason: str) -> float | None:
        """Tries the next controller if this one certainly has no partition of that name."""
        name, entry, progress, _ = turn
        refusal = PartitionRefusal(why="NoRoom", message=f"{entry.controller}: {reason}")
        if not progress.is_sure:
            return await self._withdraw(turn, refusal)
        progress.refused_by.add(entry.controller)
        other = await self._capacity.choose_controller(name, entry.size, progress.refused_by)
        if isinstance(other, PartitionRefusal):
            return await self._withdraw(turn, other)
        await self._write(name, entry, controller=other.address, selector=other.selector)
        return 0

    async def _withdraw(self, turn: _Turn, refusal: PartitionRefusal) -> float | None:
        """Drops the intent; if V-IPU may have the partition after all, by removing it."""
        name, entry, progress, _ = turn
        log.warning("partition %s is not created: %s: %s", name, refusal.why, refusal.message)
        if progress.is_sure:
            await self._store.change(name, lambda now: None if now == entry else now)
        else:
            gone = mark_deleting(entry, refusal.message)
            await self._store.change(name, lambda now: gone if now == entry else now)
        self.outcomes.refuse(name, refusal)
        self._metrics.refusals.labels(refusal.why).inc()
        return None if progress.is_sure else 0

    # -- errors

    async def _reconcile_lost(self, name: str, found: VipuPartition | None) -> float | None:
        """The entry was removed by someone else. If V-IPU still has the partition, restore the entry."""
        if found is None:
            log.warning("partition %s is no longer in the tracker or in V-IPU", name)
            self._store.forget(name)
            return None
        log.warning("partition %s was removed from the tracker, but V-IPU has it: restoring the entry", name)
        await self._store.change(name, lambda now: now)
        return 0

    async def _report_bad_address(self, name: str, entry: PartitionEntry) -> float | None:
        if entry.state == "deleting":
            await self._store.change(name, lambda now: None if now == entry else now)
            return None
        message = f"controller: {entry.controller[:80]!r}: expected host:port"
        if entry.message != message:
            await self._write(name, entry, message=message)
        return None

    async def _retry_later(self, turn: _Turn, message: str, error: VipuError) -> float:
        """V-IPU refused or did not answer. The message is written to the entry once, even if its text changes later."""
        name, entry, progress, _ = turn
        delay_s = self._retries.delay_s(progress.failures, self._rng)
        progress.failures += 1
        if progress.failures == 1:
            log.warning("partition %s: %s; retrying in %.1f s", name, error, delay_s)
            if entry.state != "active" and not entry.message and name not in self._store.lost:
                await self._write(name, entry, message=message)
        return delay_s

    async def _write(self, name: str, entry: PartitionEntry, **changes: object) -> None:
        """Does nothing if the entry has changed; the next turn then uses the new one."""
        changed = msgspec.structs.replace(entry, **changes)
        await self._store.change(name, lambda now: changed if now == entry else now)


async def _wait_for_either(wake: asyncio.Event, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await wake.wait()

"""Brings V-IPU to what the tracker says is meant, one task for each partition that is in a passing state.

Each turn looks at the entry, asks V-IPU for that name, and takes one step; so a turn that died half-way is taken up by
the next one, whoever takes it. Nothing runs, and V-IPU is asked nothing, while every entry is settled.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import msgspec

from muster_kube.controller.backoff import Backoff
from muster_operator.job.names import is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, ipus_text
from muster_operator.proxy.controllers.capacity import Counting
from muster_operator.proxy.controllers.measured_calls import Measured
from muster_operator.proxy.controllers.reachable import Reaching
from muster_operator.proxy.metrics import Metrics
from muster_operator.proxy.quarantine.park_resize import Shrinking
from muster_operator.proxy.quarantine.parks import Parking
from muster_operator.proxy.timing import Pace, Turns
from muster_operator.proxy.tracker import entries as tracker
from muster_operator.proxy.tracker.decisions import Step, deleting, next_step
from muster_operator.proxy.tracker.store import Full, Store, Unreadable
from muster_operator.vipu.controller import (
    Ipu,
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)

log = logging.getLogger(__name__)

MADE_AGAIN = "V-IPU did not have it any more: made again"


class Settling:
    """quarantined: the IPUs that are kept out now."""

    def __init__(
        self,
        store: Store,
        reaching: Reaching,
        counting: Counting,
        metrics: Metrics,
        quarantined: Callable[[], Collection[Ipu]],
        *,
        parked_limit: int,
        pace: Pace,
    ) -> None:
        self._store = store
        self._reaching = reaching
        self._counting = counting
        self._metrics = metrics
        self._quarantined = quarantined
        self._pace = pace
        self._retries = Backoff(pace.retry_s, pace.retry_cap_s)
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, Turns] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._parking = Parking(store, metrics, pace, parked_limit, self.verify, self._unanswered_creation)
        self._shrinking = Shrinking(store, self._parking)
        self._refusals: dict[str, PartitionRefusal] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._is_ready = asyncio.Event()
        self._is_over = False

    # -- who asks for it

    def wake(self, names: Iterable[str]) -> None:
        """Something about them has changed."""
        for name in () if self._is_over else names:
            self._wakes.setdefault(name, asyncio.Event()).set()
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._settle(name))

    def begun(self, name: str) -> None:
        """The intent to make it is just written, and nobody has asked V-IPU yet."""
        self._turns[name] = Turns(is_sure=True)
        self._refusals.pop(name, None)

    def verify(self, names: Iterable[str]) -> None:
        """Look whether V-IPU has what the tracker says."""
        names = list(names)
        for name in names:
            self._turns.setdefault(name, Turns()).verify = True
        self.wake(names)

    def verify_parked(self) -> None:
        """Other IPUs are quarantined now."""
        self._shrinking.given_up.clear()
        self.verify(tracker.parked(self._store.entries))

    def listed(self, address: str, partitions: Collection[VipuPartition]) -> None:
        """What a controller has: an active one that is missing there is looked at."""
        there = {each.name for each in partitions}
        self.verify(
            name
            for name, entry in self._store.entries.items()
            if entry.state == "active" and entry.controller == address and name not in there
        )

    async def settled(
        self, name: str, is_over: Callable[[PartitionEntry | None], bool], timeout_s: float
    ) -> PartitionRefusal | None:
        """Wait until ``is_over`` of the entry, a refusal, which is returned, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while name not in self._refusals and not is_over(self._store.entry(name)):
                    moved = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(name, []).append(moved)
                    await moved
        return self._refusals.pop(name, None)

    @property
    def is_ready(self) -> bool:
        """It is known what is quarantined; before that nothing is settled."""
        return self._is_ready.is_set()

    @property
    def is_busy(self) -> bool:
        """Something is on its way."""
        return bool(self._tasks)

    async def verify_all(self) -> None:
        """At the start, once it is known what is quarantined: every entry is held against V-IPU; those that are
        settled, by one question a controller. Nothing is settled before."""
        self._is_ready.set()
        entries = dict(self._store.entries)
        self.wake(name for name, entry in entries.items() if entry.state != "active" or is_parked(name))
        self.verify(tracker.parked(entries))
        active = {entry.controller for entry in entries.values() if entry.state == "active"}
        await asyncio.gather(*map(self._verify_controller, active))

    async def stop(self) -> None:
        """Every intent is in the tracker: whoever comes next goes on."""
        self._is_over = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify_controller(self, address: str) -> None:
        controller = self._reaching.at(address)
        failures = 0
        while controller is not None:
            try:
                self.listed(address, await controller.partitions())
            except VipuError as error:
                delay_s = self._retries.delay_s(failures, self._rng)
                if not failures:
                    log.warning("active partitions are not verified: %s; again in %.1f s", error, delay_s)
                failures += 1
                await asyncio.sleep(delay_s)
            else:
                return

    # -- one partition

    async def _settle(self, name: str) -> None:
        """Until it is settled and nobody has woken it meanwhile."""
        wake = self._wakes[name]
        try:
            await self._is_ready.wait()
            while True:
                wake.clear()
                wait_s = await self._turn(name)
                self._tell_moved(name)
                if wait_s is None:
                    self._counting.refresh()
                    if not wake.is_set():
                        return
                elif wait_s > 0:
                    await _either(wake, wait_s)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("partition %s: an error of this program; it is looked at again when it changes", name)
        finally:
            self._counting.release(name)
            del self._tasks[name]
            del self._wakes[name]
            if self._store.entry(name) is None or not self._turns.get(name, Turns()).verify:
                self._turns.pop(name, None)

    def _tell_moved(self, name: str) -> None:
        for moved in self._waiting.pop(name, ()):
            if not moved.done():
                moved.set_result(None)

    async def _turn(self, name: str) -> float | None:
        """Seconds to wait for the next turn; None: it is settled."""
        turns = self._turns.setdefault(name, Turns())
        entry = self._store.entry(name)
        is_lost = name in self._store.lost
        if (
            entry is None
            or name in self._parking.under_way
            or (entry.state == "active" and not turns.verify and not is_lost)
        ):
            return None
        controller = self._reaching.at(entry.controller)
        if controller is None:
            return await self._without_controller(name, entry)
        try:
            found = await controller.partition(name)
            if self._store.entry(name) != entry:
                return 0
            if is_lost:
                return await self._settle_lost(name, found)
            return await self._step(name, entry, found, turns, controller)
        except VipuUnreachable as error:
            return await self._unanswered(
                name, entry, turns, f"V-IPU controller {controller.address}: no answer", error
            )
        except VipuError as error:
            return await self._unanswered(name, entry, turns, str(error), error)
        except (Full, Unreadable) as error:
            log.warning("partition %s: %s", name, error)
            return None

    async def _step(
        self, name: str, entry: PartitionEntry, found: VipuPartition | None, turns: Turns, controller: Measured
    ) -> float | None:
        """One step; raises VipuError."""
        if found is not None and found.state == "RESETTING" and entry.reset:
            turns.fresh = entry.attempt  # whoever began it: it ends clean
        if found is not None and turns.fresh is None:
            turns.late_until = 0.0  # this is what was not answered for
        is_fresh = turns.fresh == entry.attempt
        step = next_step(name, entry, found, self._quarantined(), is_fresh=is_fresh)
        log.debug("partition %s: %s, V-IPU: %s: %s", name, entry.state, found.state if found else "none", step.value)
        if step not in (Step.WAIT, Step.REMOVE, Step.DROP):
            turns.polls = 0
        match step:
            case Step.WAIT:
                return turns.next_poll_s(self._pace)
            case Step.DONE:
                turns.verify = False
                return None
            case Step.CREATE:
                return await self._create(name, entry, turns, controller)
            case Step.RESET:
                await controller.reset(name)
                turns.fresh = entry.attempt
                return turns.next_poll_s(self._pace)
            case Step.REMOVE:
                sick = _sickness(entry, found, turns)
                if sick and not turns.is_sick:
                    # at the pace of failures, or a sick IPU would be trained without end
                    turns.is_sick = True
                    raise VipuError(f"V-IPU: {sick}: it will be removed, and made again")
                turns.is_sick = False
                await controller.remove(name)
                return turns.next_poll_s(self._pace)
            case Step.PARK:
                refusal = await self._parking.put_in_place_of(name, entry, turns, controller)
                if refusal is not None:
                    turns.is_sure = False  # it is there
                    return await self._withdraw(name, entry, turns, refusal)
            case Step.DROP:
                if found is None and turns.late_until > asyncio.get_running_loop().time():
                    return turns.next_poll_s(self._pace)  # else it would be nobody's
                await self._store.change(name, lambda now: None if now == entry else now)
                log.info("partition %s is gone", name)
                return None
            case Step.ACTIVATE:
                message = entry.message if entry.message == MADE_AGAIN or is_parked(name) else ""
                lies_on = ipus_text((ipu.machine, ipu.index) for ipu in found.ipus) if found is not None else ""
                await self._write(name, entry, state="active", reset=False, message=message, ipus=lies_on)
                log.info("partition %s is active on %s", name, entry.controller)
            case Step.REMAKE:
                log.error("partition %s, active on %s, is not there any more: made again", name, entry.controller)
                self._metrics.vanished.inc()
                await self._write(name, entry, state="creating", reset=False, message=MADE_AGAIN)
            case Step.SHRINK:
                return await self._shrink(name, entry, found, turns, controller)
            case Step.RELEASE:
                log.info("parked partition %s: its IPUs are quarantined no more", name)
                await self._write(name, entry, state="deleting", message="not quarantined any more")
        if step is Step.ACTIVATE:
            turns.failures = 0
        return 0

    async def _create(self, name: str, entry: PartitionEntry, turns: Turns, controller: Measured) -> float | None:
        try:
            async with self._parking.calm(entry.controller):
                if self._store.entry(name) != entry:
                    return 0
                await controller.create(name, entry.size, entry.gcds)
        except PartitionExists:
            return turns.next_poll_s(self._pace)  # by a call whose answer was lost
        except VipuUnreachable:
            self._unanswered_creation(name)
            raise
        except NoRoom as error:
            return await self._no_room(name, entry, turns, str(error))
        except VipuError as error:
            return await self._withdraw(name, entry, turns, PartitionRefusal(why="Refused", message=str(error)))
        finally:
            self._counting.release(name)
        turns.fresh = entry.attempt
        return turns.next_poll_s(self._pace)

    async def _shrink(
        self, name: str, entry: PartitionEntry, found: VipuPartition | None, turns: Turns, controller: Measured
    ) -> float | None:
        if found is None or entry.controller in self._shrinking.given_up:
            turns.verify = False
            return None
        if not self._shrinking.is_calm(entry.controller):
            return turns.next_poll_s(self._pace)
        await self._shrinking.shrink(name, found.ipus, self._quarantined(), controller)
        return 0

    def _unanswered_creation(self, name: str) -> None:
        turns = self._turns.setdefault(name, Turns())
        turns.is_sure = False
        turns.late_until = asyncio.get_running_loop().time() + self._pace.late_s

    async def _no_room(self, name: str, entry: PartitionEntry, turns: Turns, said: str) -> float | None:
        """The next controller, where it is sure that this one has nothing by that name."""
        refusal = PartitionRefusal(why="NoRoom", message=f"{entry.controller}: {said}")
        if not turns.is_sure:
            return await self._withdraw(name, entry, turns, refusal)
        turns.refused_by.add(entry.controller)
        other = await self._counting.choose(name, entry.size, turns.refused_by)
        if isinstance(other, PartitionRefusal):
            return await self._withdraw(name, entry, turns, other)
        await self._write(name, entry, controller=other.address, selector=other.selector)
        return 0

    async def _withdraw(
        self, name: str, entry: PartitionEntry, turns: Turns, refusal: PartitionRefusal
    ) -> float | None:
        """The intent comes to nothing; where V-IPU may have something after all, by way of removing that."""
        log.warning("partition %s is not made: %s: %s", name, refusal.why, refusal.message)
        if turns.is_sure:
            await self._store.change(name, lambda now: None if now == entry else now)
        else:
            gone = deleting(entry, refusal.message)
            await self._store.change(name, lambda now: gone if now == entry else now)
        if len(self._refusals) > 4096:  # of those who did not wait for it
            self._refusals.clear()
        self._refusals[name] = refusal
        self._metrics.refusals.labels(refusal.why).inc()
        return None if turns.is_sure else 0

    # -- what else there is

    async def _settle_lost(self, name: str, found: VipuPartition | None) -> float | None:
        """Its key went without our doing; where V-IPU still has it, it is put back."""
        if found is None:
            log.warning("partition %s is in neither the tracker nor V-IPU any more", name)
            self._store.forget(name)
            return None
        log.warning("partition %s was taken out of the tracker, but V-IPU has it: put back", name)
        await self._store.change(name, lambda now: now)
        return 0

    async def _without_controller(self, name: str, entry: PartitionEntry) -> float | None:
        if entry.state == "deleting":
            await self._store.change(name, lambda now: None if now == entry else now)
            return None
        told = f"controller: {entry.controller[:80]!r}: expected host:port"
        if entry.message != told:
            await self._write(name, entry, message=told)
        return None

    async def _unanswered(self, name: str, entry: PartitionEntry, turns: Turns, told: str, error: VipuError) -> float:
        """V-IPU said no, or nothing. The entry says so, once: a text that changes each time is not written again."""
        delay_s = self._retries.delay_s(turns.failures, self._rng)
        turns.failures += 1
        if turns.failures == 1:
            log.warning("partition %s: %s; again in %.1f s", name, error, delay_s)
            if entry.state != "active" and not entry.message and name not in self._store.lost:
                await self._write(name, entry, message=told)
        return delay_s

    async def _write(self, name: str, entry: PartitionEntry, **changes: object) -> None:
        """Unless the entry has moved: then the next turn sees what it is now."""
        changed = msgspec.structs.replace(entry, **changes)
        await self._store.change(name, lambda now: changed if now == entry else now)


def _sickness(entry: PartitionEntry, found: VipuPartition | None, turns: Turns) -> str:
    """Why what was made for this attempt is no good; empty: it was not, or is to go anyway."""
    if found is None or entry.state == "deleting":
        return ""
    if found.state == "ERROR":
        return found.message
    if turns.fresh == entry.attempt and not entry.reset:
        made, asked = f"{found.size} IPUs in {found.gcds} GCDs", f"{entry.size} in {entry.gcds}"
        return f"it made {made}, asked for {asked}"
    return ""


async def _either(wake: asyncio.Event, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await wake.wait()

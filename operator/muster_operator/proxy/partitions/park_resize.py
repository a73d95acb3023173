"""Makes a park no larger than the quarantined IPUs under it need, so that the healthy ones beside them can be used.

A park begins with the size of the partition that it replaces, and V-IPU chooses where the next one lies. So it is
taken away, and partitions of half its size are made until they cover it; those with a quarantined IPU are halved
again, down to the IPU itself, and the others are let go at the end.

Each of them is an entry of the tracker before it is made. Should this process die in between, the next one sees parks
that hold no quarantined IPU, and lets them go, or some that are too large, and goes on; at worst no park is left, and
the next partition that falls on the IPU makes one.
"""

import asyncio
import logging
from collections.abc import Collection

from muster_operator.job.names import is_parked
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.partitions.parks import ParkKeeper, generate_park_name
from muster_operator.proxy.tracker.decisions import mark_deleting
from muster_operator.proxy.tracker.patch import TrackerFull
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import Ipu, VipuError

log = logging.getLogger(__name__)

PIECES = 48  # made for one park: 12 from 64 IPUs to one, and those that V-IPU puts elsewhere
LIMIT_S = 120.0  # in which nothing else is created there
Piece = tuple[str, tuple[Ipu, ...]]


class _ResizeFailed(Exception):
    pass


class ParkResizer:
    """given_up: controllers where it led to nothing; they are left alone until other IPUs are quarantined."""

    def __init__(self, store: TrackerStore, parks: ParkKeeper) -> None:
        self._store = store
        self._parks = parks
        self.given_up: set[str] = set()

    def can_resize(self, address: str) -> bool:
        """No job's partition is on its way there: none falls on what is free for a moment."""
        return not any(
            entry.controller == address and entry.state == "creating" and not is_parked(name)
            for name, entry in self._store.entries.items()
        )

    async def shrink(
        self, park: str, ipus: tuple[Ipu, ...], bad: Collection[Ipu], controller: MeasuredController
    ) -> None:
        """Raises VipuError while ``park`` itself is still there."""
        async with self._parks.resize_lock(controller.address):
            log.info("parked partition %s, of %d IPUs on %s, is made smaller", park, len(ipus), controller.address)
            resize = _Resize(self._store, self._parks, controller, frozenset(bad))
            try:
                await resize.remove_piece(park)
                await resize.halve(ipus)
                await resize.release_unneeded()
            except (VipuError, TrackerFull, _ResizeFailed) as error:
                self.given_up.add(controller.address)
                log.warning("no smaller park in place of %s: %s", park, error)
                if self._store.find_entry(park) is not None:
                    raise VipuError(str(error)) from error
            finally:
                resize.end()  # waits for nothing: this process may be ending


class _Resize:
    """Of one park. pieces: what was made for it and is there."""

    def __init__(
        self, store: TrackerStore, parks: ParkKeeper, controller: MeasuredController, bad: frozenset[Ipu]
    ) -> None:
        self._store = store
        self._parks = parks
        self._controller = controller
        self._bad = bad
        self._ends_at = asyncio.get_running_loop().time() + LIMIT_S
        self._created = 0
        self._names: set[str] = set()
        self._pieces: dict[str, tuple[Ipu, ...]] = {}

    async def halve(self, block: tuple[Ipu, ...]) -> None:
        """block: free IPUs next to each other, in order."""
        todo: list[tuple[Ipu, ...]] = [block]
        while todo:
            block = todo.pop()
            for name, ipus in await self._cover(block):
                if not self._bad.isdisjoint(ipus) and not self._bad.issuperset(ipus):
                    # one after the other: the rest of what is halved stays covered
                    await self.remove_piece(name)
                    await self.halve(ipus)

    async def _cover(self, block: tuple[Ipu, ...]) -> list[Piece]:
        """The block in two pieces, or in one, where it is quarantined as a whole."""
        size = len(block) if self._bad.issuperset(block) else len(block) // 2
        found: list[Piece] = []
        while sum(len(ipus) for _, ipus in found) < len(block):
            piece = await self._create_piece(size)
            if set(piece[1]) <= set(block):
                found.append(piece)
        return found

    async def _create_piece(self, size: int) -> Piece:
        if self._created == PIECES or not self._in_time():
            raise _ResizeFailed(f"{self._created} partitions were put elsewhere, or took too long")
        self._created += 1
        name = generate_park_name()
        self._names.add(name)
        self._parks.under_way.add(name)
        self._pieces[name] = ()
        await self._parks.record_intent(name, name, size, self._controller.address)
        await self._parks.create(name, size, self._controller)
        ipus = self._pieces[name] = await self._parks.wait_until_placed(name, self._controller, self._in_time)
        return name, ipus

    async def remove_piece(self, name: str) -> None:
        entry = self._store.find_entry(name)
        if entry is not None:
            gone = mark_deleting(entry, "is made smaller")
            await self._store.change(name, lambda now: gone if now == entry else now)
            if not await self._parks.remove(name, self._controller, self._in_time):
                raise _ResizeFailed(f"{name} is not gone yet")
            await self._store.change(name, lambda now: None if now is not None and now.state == "deleting" else now)
        self._pieces.pop(name, None)

    def _in_time(self) -> bool:
        return asyncio.get_running_loop().time() < self._ends_at

    async def release_unneeded(self) -> None:
        """What holds no quarantined IPU, before anybody counts it as parked."""
        for name, ipus in self._pieces.items():
            entry = self._store.find_entry(name)
            if entry is not None and ipus and self._bad.isdisjoint(ipus):
                gone = mark_deleting(entry, "not quarantined")
                await self._store.change(name, lambda now, was=entry, then=gone: then if now == was else now)  # type: ignore[misc]

    def end(self) -> None:
        """All of them are looked at as any other."""
        self._parks.under_way.difference_update(self._names)
        self._parks.hand_over(self._names)

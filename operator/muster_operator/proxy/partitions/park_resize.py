"""Shrinks a parked partition to the quarantined IPUs in it, so that the healthy ones beside them can be used.

A parked partition starts with the size of the partition that it replaces, and V-IPU chooses where the next one lies. So
the resizer removes it and creates partitions of half its size until they cover it. It halves those with a quarantined
IPU again, down to the IPU itself, and releases the others at the end.

Each of them is in the tracker before it is created. After a crash the next process finds parked partitions without a
quarantined IPU, which it releases, or some that are too large, and continues. At worst no parked partition is left, and
the next partition on the IPU creates one.
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

PIECES = 48  # partitions created per parked one: 12 from 64 IPUs to one, and those that V-IPU places elsewhere
LIMIT_S = 120.0  # during which nothing else is created on the controller
Piece = tuple[str, tuple[Ipu, ...]]


class _ResizeFailed(Exception):
    pass


class ParkResizer:
    """given_up: controllers where shrinking failed; they are left alone until the quarantine changes."""

    def __init__(self, store: TrackerStore, parks: ParkKeeper) -> None:
        self._store = store
        self._parks = parks
        self.given_up: set[str] = set()

    def can_resize(self, address: str) -> bool:
        """Whether no partition of a job is being created there, which could land on IPUs that are free for a moment."""
        return not any(
            entry.controller == address and entry.state == "creating" and not is_parked(name)
            for name, entry in self._store.entries.items()
        )

    async def shrink(
        self, park: str, ipus: tuple[Ipu, ...], bad: Collection[Ipu], controller: MeasuredController
    ) -> None:
        """Raises VipuError while ``park`` itself still exists."""
        async with self._parks.resize_lock(controller.address):
            log.info("parked partition %s, of %d IPUs on %s: shrinking it", park, len(ipus), controller.address)
            resize = _Resize(self._store, self._parks, controller, frozenset(bad))
            try:
                await resize.remove_piece(park)
                await resize.halve(ipus)
                await resize.release_unneeded()
            except (VipuError, TrackerFull, _ResizeFailed) as error:
                self.given_up.add(controller.address)
                log.warning("parked partition %s: cannot shrink it: %s", park, error)
                if self._store.find_entry(park) is not None:
                    raise VipuError(str(error)) from error
            finally:
                resize.end()  # does not wait, because this process may be ending


class _Resize:
    """Shrinks one parked partition. _pieces: partitions that were created for that."""

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
        """block: adjacent free IPUs, in order."""
        todo: list[tuple[Ipu, ...]] = [block]
        while todo:
            block = todo.pop()
            for name, ipus in await self._cover(block):
                if not self._bad.isdisjoint(ipus) and not self._bad.issuperset(ipus):
                    # one after the other, so that the rest of the block stays covered
                    await self.remove_piece(name)
                    await self.halve(ipus)

    async def _cover(self, block: tuple[Ipu, ...]) -> list[Piece]:
        """Covers the block with two pieces, or with one if it is quarantined as a whole."""
        size = len(block) if self._bad.issuperset(block) else len(block) // 2
        found: list[Piece] = []
        while sum(len(ipus) for _, ipus in found) < len(block):
            piece = await self._create_piece(size)
            if set(piece[1]) <= set(block):
                found.append(piece)
        return found

    async def _create_piece(self, size: int) -> Piece:
        if self._created == PIECES or not self._in_time():
            raise _ResizeFailed(
                f"gave up after {self._created} partitions: V-IPU placed them elsewhere, or took too long"
            )
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
            gone = mark_deleting(entry, "is being shrunk")
            await self._store.change(name, lambda now: gone if now == entry else now)
            if not await self._parks.remove(name, self._controller, self._in_time):
                raise _ResizeFailed(f"{name} is not gone yet")
            await self._store.change(name, lambda now: None if now is not None and now.state == "deleting" else now)
        self._pieces.pop(name, None)

    def _in_time(self) -> bool:
        return asyncio.get_running_loop().time() < self._ends_at

    async def release_unneeded(self) -> None:
        """Release pieces without a quarantined IPU, before they count as parked."""
        for name, ipus in self._pieces.items():
            entry = self._store.find_entry(name)
            if entry is not None and ipus and self._bad.isdisjoint(ipus):
                gone = mark_deleting(entry, "not quarantined")
                await self._store.change(name, lambda now, was=entry, then=gone: then if now == was else now)  # type: ignore[misc]

    def end(self) -> None:
        """From now on the pieces are reconciled as any other partition."""
        self._parks.under_way.difference_update(self._names)
        self._parks.hand_over(self._names)

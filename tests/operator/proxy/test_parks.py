"""Parked partitions, one call at a time: nobody reconciles here, so each step has to do its own part.

What comes of them with a reconciler is in test_park_resize.py and test_capacity.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.proxy.world import FAST, TRACKER, World

from muster_operator.job.names import PARKED_PREFIX, is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partitions import park_resize, parks
from muster_operator.proxy.partitions.park_resize import ParkResizer
from muster_operator.proxy.partitions.parks import ParkKeeper
from muster_operator.proxy.partitions.progress import PartitionProgress
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus
from muster_operator.proxy.tracker import patch
from muster_operator.proxy.tracker.config_map import TrackerConfigMap
from muster_operator.proxy.tracker.store import TrackerStore
from muster_operator.vipu.controller import Ipu, NoRoom, VipuError, VipuPartition, VipuUnreachable

NAME = "p-default-train-0"
PARK = f"{PARKED_PREFIX}0000000a"


class Bed:
    """A tracker, a controller with 16 IPUs, and what parks on it."""

    def __init__(self) -> None:
        self.world = World(16, knows_ipus=True)
        self.vipu = self.world.vipus[0]
        metrics = ProxyMetrics()
        tracker = TrackerConfigMap(self.world.api, "muster", TRACKER)  # type: ignore[arg-type]
        self.store = TrackerStore(tracker, metrics, on_change=lambda _: None)
        self.handed_over: list[str] = []
        self.unanswered: list[str] = []
        self.parks = ParkKeeper(
            self.store, metrics, FAST, QuarantinedIpus(metrics, 64),
            on_parked=self.handed_over.extend, on_unanswered=self.unanswered.append,
        )  # fmt: skip
        self.controller = MeasuredController(self.vipu, metrics)
        self.resizer = ParkResizer(self.store, self.parks)

    async def add(self, name: str, size: int, **fields: Any) -> PartitionEntry:
        """A partition that V-IPU and the tracker have."""
        entry = PartitionEntry(
            job="uid", namespace="default", name="train", size=size, controller=self.vipu.address, **fields
        )
        await self.store.change(name, lambda _: entry)
        await self.vipu.inner.create(name, size, 1)
        found = self.store.find_entry(name)
        assert found is not None
        return found

    async def park(self, size: int) -> tuple[Ipu, ...]:
        """:data:`PARK`, and the IPUs that it lies on."""
        await self.add(PARK, size, state="active")
        return await self.parks.wait_until_placed(PARK, self.controller, lambda: True)

    def entry_states(self) -> dict[tuple[int, ...], str]:
        """State in the tracker by the IPUs that V-IPU has given."""
        return {
            tuple(held.ipus): entry.state if entry is not None else "unknown"
            for name, held in self.vipu.held.items()
            for entry in [self.store.find_entry(name)]
        }


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    running = asyncio.create_task(made.store.run(None))
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def ipu(number: int) -> Ipu:
    return Ipu(f"10.1.1.{number // 4 + 1}", number % 4)


# shrinking


async def test_pieces_without_a_quarantined_ipu_are_given_back_in_the_tracker_at_once(bed: Bed) -> None:
    await bed.resizer.shrink(PARK, await bed.park(8), {ipu(3)}, bed.controller)
    assert bed.entry_states() == {(0, 1): "deleting", (2,): "deleting", (3,): "creating", (4, 5, 6, 7): "deleting"}
    assert bed.store.find_entry(PARK) is None
    assert (set(bed.handed_over) >= set(bed.store.entries), bed.parks.under_way) == (True, set())
    assert bed.resizer.given_up == set()


async def test_the_tracker_says_that_a_park_goes_before_v_ipu_removes_it(bed: Bed) -> None:
    ipus = await bed.park(2)
    remove, states = bed.vipu.remove, []

    async def watched(name: str) -> None:
        entry = bed.store.find_entry(name)
        states.append(entry and entry.state)
        await remove(name)

    bed.vipu.remove = watched  # type: ignore[method-assign]
    await bed.resizer.shrink(PARK, ipus, {ipu(1)}, bed.controller)
    assert states == ["deleting"]


@pytest.mark.parametrize("pieces", [1, 3])
async def test_after_so_many_pieces_shrinking_is_given_up(
    bed: Bed, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V-IPU places all of them elsewhere."""
    monkeypatch.setattr(park_resize, "PIECES", pieces)
    ipus = await bed.park(2)
    elsewhere = (Ipu("10.9.9.9", 0),)
    find = bed.vipu.find_partition

    async def moved(name: str) -> VipuPartition | None:
        found = await find(name)
        return replace(found, ipus=elsewhere) if found is not None and name != PARK else found

    bed.vipu.find_partition = moved  # type: ignore[method-assign]
    await bed.resizer.shrink(PARK, ipus, {ipu(1)}, bed.controller)
    assert len([call for call in bed.vipu.calls if call[0] == "create"]) == pieces
    assert bed.resizer.given_up == {bed.vipu.address}
    assert {entry.state for entry in bed.store.entries.values()} <= {"creating", "deleting"}
    assert len(bed.handed_over) == pieces, "the reconciler takes them over"


async def test_a_park_that_cannot_be_removed_is_an_error_and_one_that_is_gone_is_not(bed: Bed) -> None:
    ipus = await bed.park(2)

    async def refused(*_: object) -> None:
        raise VipuError("V-IPU refuses")

    remove = bed.vipu.remove
    bed.vipu.remove = refused  # type: ignore[method-assign]
    with pytest.raises(VipuError):
        await bed.resizer.shrink(PARK, ipus, {ipu(1)}, bed.controller)
    assert bed.store.find_entry(PARK) is not None
    bed.vipu.remove, bed.vipu.create = remove, refused  # type: ignore[method-assign]
    await bed.resizer.shrink(PARK, ipus, {ipu(1)}, bed.controller)
    assert (bed.store.find_entry(PARK), bed.resizer.given_up) == (None, {bed.vipu.address})


@pytest.mark.parametrize(
    ("name", "controller", "state", "may"),
    [
        (NAME, "v0:1", "creating", False),
        (NAME, "v1:1", "creating", True),
        (NAME, "v0:1", "active", True),
        (PARK, "v0:1", "creating", True),
    ],
)
async def test_nothing_shrinks_where_the_partition_of_a_job_is_being_created(
    bed: Bed, name: str, controller: str, state: Any, may: bool
) -> None:
    entry = PartitionEntry(job="uid", namespace="default", name="train", controller=controller, state=state)
    store: Any = SimpleNamespace(entries={name: entry})
    assert ParkResizer(store, bed.parks).can_resize("v0:1") == may


# parking in the place of another partition


async def test_a_park_is_placed_before_the_partition_that_it_replaces_is_created_again(bed: Bed) -> None:
    entry = await bed.add(NAME, 4)
    progress, find = PartitionProgress(), bed.vipu.find_partition

    async def late(name: str) -> VipuPartition | None:
        """A back end that knows the IPUs of active partitions only."""
        found = await find(name)
        return replace(found, ipus=()) if found is not None and found.state != "ACTIVE" else found

    bed.vipu.find_partition = late  # type: ignore[method-assign]
    assert await bed.parks.park_in_place_of(NAME, entry, progress, bed.controller) is None
    [(park, held)] = bed.vipu.held.items()
    assert (is_parked(park), held.state, progress.parks) == (True, "ACTIVE", 1)
    assert (bed.handed_over, bed.parks.under_way) == ([park], set())


async def test_a_partition_is_parked_for_so_many_times_and_no_more(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parks, "ATTEMPTS", 2)
    progress = PartitionProgress()
    refusals = []
    for _ in range(3):
        entry = await bed.add(NAME, 4)
        refusals.append(await bed.parks.park_in_place_of(NAME, entry, progress, bed.controller))
        if NAME in bed.vipu.held:
            await bed.vipu.inner.remove(NAME)
    assert [refusal and refusal.why for refusal in refusals] == [None, None, "NoRoom"]


async def test_nothing_is_parked_in_a_full_tracker(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = await bed.add(NAME, 4)
    monkeypatch.setattr(patch, "TRACKER_LIMIT", len(str(bed.world.api.data)))
    refusal = await bed.parks.park_in_place_of(NAME, entry, PartitionProgress(), bed.controller)
    assert isinstance(refusal, PartitionRefusal)
    assert (refusal.why, list(bed.vipu.held)) == ("Full", [NAME])


async def test_where_another_partition_was_faster_the_park_is_handed_over_to_be_removed(bed: Bed) -> None:
    entry = await bed.add(NAME, 4)

    async def full(*_: object) -> None:
        raise NoRoom("taken")

    bed.vipu.create = full  # type: ignore[method-assign]
    assert await bed.parks.park_in_place_of(NAME, entry, PartitionProgress(), bed.controller) is None
    assert [is_parked(name) for name in bed.handed_over] == [True]
    assert (bed.vipu.held, bed.unanswered) == ({}, [])


async def test_a_park_whose_creation_got_no_answer_is_looked_for_later(bed: Bed) -> None:
    entry = await bed.add(NAME, 4)

    async def silent(*_: object) -> None:
        raise VipuUnreachable("no answer")

    bed.vipu.create = silent  # type: ignore[method-assign]
    with pytest.raises(VipuUnreachable):
        await bed.parks.park_in_place_of(NAME, entry, PartitionProgress(), bed.controller)
    assert bed.unanswered == bed.handed_over != []


# waiting for V-IPU


async def test_removing_waits_until_the_partition_is_gone_unless_the_time_is_over(bed: Bed) -> None:
    await bed.park(4)
    found, looks = await bed.vipu.find_partition(PARK), 0

    async def slowly(_name: str) -> VipuPartition | None:
        nonlocal looks
        looks += 1
        return found if looks < 5 else None

    bed.vipu.find_partition = slowly  # type: ignore[method-assign]
    assert (await bed.parks.remove(PARK, bed.controller, lambda: looks < 2), looks) == (False, 2)
    assert (await bed.parks.remove(PARK, bed.controller), looks) == (True, 5)


@pytest.mark.parametrize(
    ("shown", "ipus"),
    [
        (lambda found: replace(found, state="CREATING"), (ipu(0),)),
        (lambda found: replace(found, state="ACTIVE", ipus=()), ()),
        (lambda found: replace(found, state="ERROR", ipus=()), ()),
        (lambda _found: None, ()),
    ],
    ids=["ipus known early", "active, ipus unknown", "in error", "gone"],
)
async def test_a_partition_is_placed_once_v_ipu_has_said_all_that_it_will(
    bed: Bed, shown: Callable[[VipuPartition], VipuPartition | None], ipus: tuple[Ipu, ...]
) -> None:
    await bed.park(1)
    found = await bed.vipu.find_partition(PARK)
    assert found is not None
    looks = 0

    async def answer(_name: str) -> VipuPartition | None:
        nonlocal looks
        looks += 1
        return shown(found) if looks == 3 else replace(found, state="CREATING", ipus=())

    bed.vipu.find_partition = answer  # type: ignore[method-assign]
    assert (await bed.parks.wait_until_placed(PARK, bed.controller, lambda: looks < 9), looks) == (ipus, 3)

"""Parks are made as small as the quarantined IPUs need, whatever V-IPU chooses."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from tests.operator.proxy.world import World, build_request, partition_name, quarantined

from muster_operator.job.names import PARKED_PREFIX, is_parked
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.partitions import park_resize
from muster_operator.vipu.controller import Ipu, NoRoom
from muster_operator.vipu.simulator import fleet as simulated_fleet


def ipu(number: int) -> Ipu:
    return Ipu(f"10.1.1.{number // 4 + 1}", number % 4)


def parks(world: World) -> list[list[int]]:
    return sorted(list(held.ipus) for name, held in world.vipus[0].held.items() if is_parked(name))


class Choosing:
    """V-IPU takes any free block that it likes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._real = simulated_fleet._iterate_free_blocks

    def blocks(self, fleet: simulated_fleet.SimulatedFleet, size: int) -> Iterator[int]:
        found = list(self._real(fleet, size))
        self._rng.shuffle(found)
        return iter(found)


@pytest.mark.parametrize(
    ("size", "bad", "expected"),
    [
        (64, {0}, [[0]]),
        (64, {63}, [[63]]),
        (64, {21}, [[21]]),
        (64, {0, 63}, [[0], [63]]),
        (64, {4, 5, 6, 7}, [[4, 5, 6, 7]]),
        (16, {2, 3, 5}, [[2, 3], [5]]),
        (1, {0}, [[0]]),
    ],
)
async def test_one_bad_ipu_under_a_large_partition_keeps_no_other_from_work(
    size: int, bad: set[int], expected: list[list[int]]
) -> None:
    world = World(128, knows_ipus=True)
    proxy = await world.start(quarantined(*map(ipu, bad)))
    asked = build_request(size=size)
    taken = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(taken, PartitionEntry)
    await world.wait_idle()
    assert parks(world) == expected
    world.assert_they_agree()
    assert (await proxy.capacity.count_ipus())["total"]["available"] == 128 - size - len(bad)
    calls, writes = list(world.vipus[0].calls), world.api.writes
    proxy.reconciler.verify_parked()
    await world.wait_idle()
    assert (world.vipus[0].calls, world.api.writes) == (calls, writes), "and that is that"
    await world.kill()


@pytest.mark.parametrize("seed", range(20))
async def test_with_random_placement_no_job_stays_on_a_bad_ipu(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    world = World(32, knows_ipus=True)
    monkeypatch.setattr(simulated_fleet, "_iterate_free_blocks", Choosing(rng).blocks)
    bad = set(rng.sample(range(32), 2))
    proxy = await world.start(quarantined(*map(ipu, bad)))
    for number in range(6):
        asked = build_request(f"uid-{number}", name=f"j{number}", size=rng.choice([1, 2, 4, 8]))
        taken = await proxy.intents.request(partition_name(asked), asked)
        if isinstance(taken, PartitionRefusal):
            assert taken.why == "NoRoom"
    await world.wait_idle()
    world.assert_they_agree()
    for name, held in world.vipus[0].held.items():
        if is_parked(name):
            assert not bad.isdisjoint(held.ipus)
        else:
            assert bad.isdisjoint(held.ipus)
    proxy.update_quarantine({})
    await world.wait_idle()
    assert parks(world) == []
    world.assert_they_agree()
    await world.kill()


async def test_where_no_smaller_one_can_be_made_it_is_given_up_and_nothing_is_left_behind() -> None:
    world = World(16, knows_ipus=True)
    vipu = world.vipus[0]
    real = vipu.create

    async def create(name: str, size: int, gcds: int) -> None:
        if name.startswith(PARKED_PREFIX) and size < 4:
            raise NoRoom("V-IPU makes none so small")
        await real(name, size, gcds)

    vipu.create = create  # type: ignore[method-assign]
    proxy = await world.start(quarantined(ipu(1)))
    asked = build_request(size=4)
    assert isinstance(await proxy.intents.request(partition_name(asked), asked), PartitionEntry)
    await world.wait_idle()
    world.assert_they_agree()
    assert parks(world) == []
    assert (await proxy.capacity.count_ipus())["total"]["available"] == 11
    other = build_request("uid-2", name="other", size=4)
    assert isinstance(await proxy.intents.request(partition_name(other), other), PartitionEntry)
    await world.wait_idle()
    assert parks(world) == [[0, 1, 2, 3]], "it is not tried again"
    await world.kill()


async def test_a_parked_partition_that_cannot_be_removed_blocks_creations_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(park_resize, "LIMIT_S", 0.05)
    world = World(16, knows_ipus=True)
    vipu = world.vipus[0]
    real, is_stuck, is_asked = vipu.remove, True, asyncio.Event()

    async def remove(name: str) -> None:
        if is_stuck and name.startswith(PARKED_PREFIX):
            is_asked.set()
        else:
            await real(name)

    vipu.remove = remove  # type: ignore[method-assign]
    proxy = await world.start(quarantined(ipu(1)))
    asked = build_request(size=4)
    assert isinstance(await proxy.intents.request(partition_name(asked), asked), PartitionEntry)
    other = build_request("uid-2", name="other", size=4)
    async with asyncio.timeout(20.0):
        await is_asked.wait()
        while True:
            taken = await proxy.intents.request(partition_name(other), other)
            if isinstance(taken, PartitionEntry) and taken.state == "active":
                break
    is_stuck = False
    await world.wait_idle()
    world.assert_they_agree()
    await world.kill()

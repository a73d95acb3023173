"""/stats and /query: used, available, aligned blocks, less what is quarantined."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.proxy.world import World, called, quarantined, wish

from muster_operator.job.partition_api import PartitionCapacity, PartitionEntry, PartitionRefusal
from muster_operator.proxy.free_capacity import Layout, spoilt
from muster_operator.proxy.quarantine import config as quarantine
from muster_operator.vipu.controller import Ipu


async def test_52_four_of_thirty_two_are_used_by_default() -> None:
    world = World(32)
    core = await world.start()
    asked = wish(size=4)
    await core.taking.take(called(asked), asked)
    line = {"used": 4, "available": 28}
    assert await core.counting.stats() == {"default": line, "total": line}
    world.vipus[0].inner.keeper.create("theirs", 8, 1)
    line = {"used": 4, "available": 20}
    assert await core.counting.stats() == {"default": line, "total": line}
    await world.kill()


async def test_53_aligned_free_blocks_are_counted() -> None:
    world = World(32)
    core = await world.start()
    asked = wish(size=4)
    await core.taking.take(called(asked), asked)
    assert await core.counting.query(2) == PartitionCapacity(True, 14, "")
    assert await core.counting.query(64) == PartitionCapacity(True, 0, "")
    assert await core.counting.query(16) == PartitionCapacity(True, 1, "")
    assert await core.counting.query(1) == PartitionCapacity(True, 28, "")
    await world.kill()


@pytest.mark.parametrize("knows_ipus", [True, False])
async def test_quarantined_ipus_are_left_out(knows_ipus: bool) -> None:
    world = World(32, knows_ipus=knows_ipus)
    core = await world.start(quarantined(Ipu("10.1.1.3", 0), Ipu("10.1.1.3", 1), Ipu("10.1.1.8", 3)))
    assert (await core.counting.stats())["total"] == {"used": 0, "available": 29}
    for size, number in ((1, 29), (2, 14), (4, 6), (32, 0)):
        assert await core.counting.query(size) == PartitionCapacity(True, number, "")
    asked = wish(size=32)
    refused = await core.taking.take(called(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.message == "v0:8090: 1 free blocks of 32 IPUs, 1 of them with quarantined IPUs"
    assert world.vipus[0].calls == []
    await world.kill()


async def test_a_quarantined_ipu_of_two_controllers_is_left_out_once() -> None:
    world = World(8, 8)
    core = await world.start(quarantined(Ipu("10.1.2.1", 0)))
    assert (await core.counting.stats())["total"]["available"] == 15
    assert (await core.counting.query(4)).num_of_partitions == 3
    await world.kill()


@pytest.mark.parametrize("knows_ipus", [True, False])
async def test_a_partition_that_falls_on_one_is_parked_and_made_elsewhere(knows_ipus: bool) -> None:
    world = World(16, knows_ipus=knows_ipus)
    core = await world.start(quarantined(Ipu("10.1.1.1", 2)))
    asked = wish(size=2)
    taken = [await core.taking.take(called(w), w) for w in (asked, wish(instance=1, size=2), wish(instance=2, size=2))]
    assert all(isinstance(each, PartitionEntry) and each.state == "active" for each in taken)
    await world.quiet()
    [parked] = [name for name in world.vipus[0].held if name.startswith("p-muster-parked-")]
    assert list(world.vipus[0].held[parked].ipus) == [2], "as small as it can be"
    world.assert_they_agree()
    assert (await core.counting.stats())["total"] == {"used": 6, "available": 9}
    assert (await core.counting.query(2)).num_of_partitions == 4
    core.quarantine({})
    await world.quiet()
    assert parked not in world.vipus[0].held
    assert parked not in world.api.data
    world.assert_they_agree()
    assert (await core.counting.stats())["total"] == {"used": 6, "available": 10}
    await world.kill()


async def test_proof_while_no_proxy_runs_releases_too() -> None:
    world = World(8)
    core = await world.start(quarantined(Ipu("10.1.1.1", 0)))
    asked = wish()
    await core.taking.take(called(asked), asked)
    await world.quiet()
    await world.kill()
    world.gate.open()
    await world.start()
    await world.quiet()
    assert set(world.vipus[0].held) == {called(asked)}
    world.assert_they_agree()
    await world.kill()


async def test_parking_is_bounded() -> None:
    world = World(16)
    core = await world.start(quarantined(Ipu("10.1.1.1", 0), Ipu("10.1.1.2", 0)), parked_limit=1)
    asked = wish()
    refused = await core.taking.take(called(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    assert "quarantined" in refused.message
    await world.quiet()
    assert [name for name in world.vipus[0].held if not name.startswith("p-muster-parked-")] == []
    world.assert_they_agree()
    await world.kill()


def test_a_quarantine_entry_that_cannot_be_understood_is_skipped_and_named() -> None:
    data = quarantined(Ipu("10.1.1.1", 2)) | {"odd": "{", "odder": '{"machine": "m", "index": "x"}'}
    ipus, skipped = quarantine.read(data)
    assert ipus == {Ipu("10.1.1.1", 2)}
    assert [line.partition(":")[0] for line in skipped] == ["odd", "odder"]


@given(st.sets(st.integers(0, 31)), st.sets(st.integers(0, 31)), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_spoilt_blocks_are_those_a_person_would_count(bad: set[int], held: set[int], size: int) -> None:
    def ipu(number: int) -> Ipu:
        return Ipu(f"m{number // 4}", number % 4)

    blocks = [set(range(first, first + size)) for first in range(0, 32, size)]
    expected = sum(1 for block in blocks if block & bad and not block & held)
    quarantined_ipus = [ipu(number) for number in bad]
    exact = Layout(tuple(map(ipu, range(32))), frozenset(map(ipu, held)))
    assert spoilt(exact, quarantined_ipus, size).known == expected
    guessed = spoilt(Layout((), exact.held), quarantined_ipus, size)
    if size <= 4:
        assert len(guessed.maybe) == expected
    else:
        assert len(guessed.maybe) >= expected, "never more room than there is"


async def test_a_crowd_costs_v_ipu_one_question() -> None:
    world = World(32)
    core = await world.start()
    await world.quiet()
    before = world.vipus[0].asked
    await asyncio.gather(*(core.counting.query(2) for _ in range(50)))
    assert world.vipus[0].asked == before + 1
    await world.kill()

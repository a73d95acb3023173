"""/stats and /query: used, available, aligned blocks, less what is quarantined."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.proxy.world import World, build_request, partition_name, quarantined

from muster_operator.job.partition_api import (
    ControllerCapacity,
    IpuCount,
    PartitionCapacity,
    PartitionEntry,
    PartitionRefusal,
)
from muster_operator.proxy.partition_limits import PartitionLimits
from muster_operator.proxy.quarantine.quarantine_list import parse_quarantine_map
from muster_operator.proxy.quarantine.quarantined_blocks import IpuLayout, find_quarantined_blocks
from muster_operator.vipu.controller import Ipu, VipuUnreachable
from muster_operator.vipu.simulator.fleet import InjectedFaults


async def test_52_four_of_thirty_two_are_used_by_default() -> None:
    world = World(32)
    proxy = await world.start()
    asked = build_request(size=4)
    await proxy.intents.request(partition_name(asked), asked)
    line = {"used": 4, "available": 28}
    assert await proxy.capacity.count_ipus() == {"default": line, "total": line}
    world.vipus[0].inner.clocked_fleet.create("theirs", 8, 1)
    line = {"used": 4, "available": 20}
    assert await proxy.capacity.count_ipus() == {"default": line, "total": line}
    await world.kill()


async def test_53_aligned_free_blocks_are_counted() -> None:
    world = World(32)
    proxy = await world.start()
    asked = build_request(size=4)
    await proxy.intents.request(partition_name(asked), asked)
    assert await proxy.capacity.count_partitions(2) == PartitionCapacity(True, 14, "")
    assert await proxy.capacity.count_partitions(64) == PartitionCapacity(True, 0, "")
    assert await proxy.capacity.count_partitions(16) == PartitionCapacity(True, 1, "")
    assert await proxy.capacity.count_partitions(1) == PartitionCapacity(True, 28, "")
    await world.kill()


@pytest.mark.parametrize("knows_ipus", [True, False])
async def test_quarantined_ipus_are_left_out(knows_ipus: bool) -> None:
    world = World(32, knows_ipus=knows_ipus)
    proxy = await world.start(quarantined(Ipu("10.1.1.3", 0), Ipu("10.1.1.3", 1), Ipu("10.1.1.8", 3)))
    assert (await proxy.capacity.count_ipus())["total"] == {"used": 0, "available": 29}
    for size, number in ((1, 29), (2, 14), (4, 6), (32, 0)):
        assert await proxy.capacity.count_partitions(size) == PartitionCapacity(True, number, "")
    asked = build_request(size=32)
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    assert [fact for fact in ("v0:8090", "1 free", "32 IPUs", "quarantined") if fact not in refused.message] == []
    assert world.vipus[0].calls == []
    await world.kill()


async def test_a_quarantined_ipu_of_two_controllers_is_left_out_once() -> None:
    world = World(8, 8)
    proxy = await world.start(quarantined(Ipu("10.1.2.1", 0)))
    assert (await proxy.capacity.count_ipus())["total"]["available"] == 15
    assert (await proxy.capacity.count_partitions(4)).num_of_partitions == 3
    await world.kill()


@pytest.mark.parametrize("knows_ipus", [True, False])
async def test_a_partition_that_falls_on_one_is_parked_and_made_elsewhere(knows_ipus: bool) -> None:
    world = World(16, knows_ipus=knows_ipus)
    proxy = await world.start(quarantined(Ipu("10.1.1.1", 2)))
    asked = build_request(size=2)
    taken = [
        await proxy.intents.request(partition_name(w), w)
        for w in (asked, build_request(instance=1, size=2), build_request(instance=2, size=2))
    ]
    assert all(isinstance(each, PartitionEntry) and each.state == "active" for each in taken)
    await world.wait_idle()
    [parked] = [name for name in world.vipus[0].held if name.startswith("p-muster-parked-")]
    assert list(world.vipus[0].held[parked].ipus) == [2], "as small as it can be"
    world.assert_they_agree()
    assert (await proxy.capacity.count_ipus())["total"] == {"used": 6, "available": 9}
    assert (await proxy.capacity.count_partitions(2)).num_of_partitions == 4
    proxy.update_quarantine({})
    await world.wait_idle()
    assert parked not in world.vipus[0].held
    assert parked not in world.api.data
    world.assert_they_agree()
    assert (await proxy.capacity.count_ipus())["total"] == {"used": 6, "available": 10}
    await world.kill()


async def test_each_controller_is_counted_with_its_largest_partition() -> None:
    world = World(16, 8)
    proxy = await world.start(quarantined(Ipu("10.1.1.3", 0)))
    asked = build_request(size=4)
    await proxy.intents.request(partition_name(asked), asked)
    world.vipus[1].inner.clocked_fleet.create("theirs", 8, 1)
    assert await proxy.capacity.count_each(64) == [
        ControllerCapacity("v0:8090", "rack=v0", IpuCount(16, 11, 4)),
        ControllerCapacity("v1:8090", "rack=v1", IpuCount(8, 0, 0)),
    ]
    assert (await proxy.capacity.count_each(2))[0].ipus == IpuCount(16, 11, 2), "no larger one is created"
    world.vipus[1].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    first, silent = await proxy.capacity.count_each(64)
    assert first.ipus is not None
    assert (silent.ipus, "v1:8090" in silent.message) == (None, True)
    await world.kill()


async def test_proof_while_no_proxy_runs_releases_too() -> None:
    world = World(8)
    proxy = await world.start(quarantined(Ipu("10.1.1.1", 0)))
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    await world.wait_idle()
    await world.kill()
    world.gate.open()
    await world.start()
    await world.wait_idle()
    assert set(world.vipus[0].held) == {partition_name(asked)}
    world.assert_they_agree()
    await world.kill()


async def test_parking_is_bounded() -> None:
    world = World(16)
    proxy = await world.start(quarantined(Ipu("10.1.1.1", 0), Ipu("10.1.1.2", 0)), limits=PartitionLimits(parked=1))
    asked = build_request()
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    assert "quarantined" in refused.message
    await world.wait_idle()
    assert [name for name in world.vipus[0].held if not name.startswith("p-muster-parked-")] == []
    world.assert_they_agree()
    await world.kill()


def test_a_quarantine_entry_that_cannot_be_understood_is_skipped_and_named() -> None:
    data = quarantined(Ipu("10.1.1.1", 2)) | {"odd": "{", "odder": '{"machine": "m", "index": "x"}'}
    ipus, skipped = parse_quarantine_map(data)
    assert ipus == {Ipu("10.1.1.1", 2)}
    assert [line.partition(":")[0] for line in skipped] == ["odd", "odder"]


@given(st.sets(st.integers(0, 31)), st.sets(st.integers(0, 31)), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_spoilt_blocks_are_those_a_person_would_count(bad: set[int], held: set[int], size: int) -> None:
    def ipu(number: int) -> Ipu:
        return Ipu(f"m{number // 4}", number % 4)

    blocks = [set(range(first, first + size)) for first in range(0, 32, size)]
    expected = sum(1 for block in blocks if block & bad and not block & held)
    quarantined_ipus = [ipu(number) for number in bad]
    exact = IpuLayout(tuple(map(ipu, range(32))), frozenset(map(ipu, held)))
    assert find_quarantined_blocks(exact, quarantined_ipus, size).known == expected
    guessed = find_quarantined_blocks(IpuLayout((), exact.in_use), quarantined_ipus, size)
    if size <= 4:
        assert len(guessed.maybe) == expected
    else:
        assert len(guessed.maybe) >= expected, "never more room than there is"


async def test_a_crowd_costs_v_ipu_one_question() -> None:
    world = World(32)
    proxy = await world.start()
    await world.wait_idle()
    before = world.vipus[0].reads
    await asyncio.gather(*(proxy.capacity.count_partitions(2) for _ in range(50)))
    assert world.vipus[0].reads == before + 1
    await world.kill()


async def test_a_controller_without_a_free_ipu_takes_none_from_the_others() -> None:
    world = World(4, 8)
    proxy = await world.start()
    asked = build_request(size=4)
    await proxy.intents.request(partition_name(asked), asked)
    assert (await proxy.capacity.count_ipus())["total"] == {"used": 4, "available": 8}
    await world.kill()


async def test_quarantined_ipus_are_counted_one_by_one_on_each_controller() -> None:
    world = World(8, knows_ipus=True)
    proxy = await world.start(quarantined(Ipu("10.1.1.1", 0), Ipu("10.1.1.1", 1)))
    [row] = await proxy.capacity.count_each(8)
    assert row.ipus == IpuCount(8, 6, 4)
    await world.kill()


async def test_a_refusal_names_the_controllers_that_do_not_answer() -> None:
    world = World(8, 8)
    proxy = await world.start()

    async def silent(*_: object) -> None:
        raise VipuUnreachable("v1:8090: no answer")

    for vipu in world.vipus:
        vipu.find_partition = silent  # type: ignore[assignment]
    asked = build_request()
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert (refused.why, refused.message.count("v1:8090")) == ("Unreachable", 2)
    await world.kill()

"""Partitions that are taken, reset and let go, with a V-IPU that works as it should."""

import asyncio

import msgspec
import pytest
from tests.operator.proxy.world import FAR_S, World, build_request, partition_name

from muster_operator.job.names import partition
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.intervals import RequestTimeouts
from muster_operator.proxy.tracker.decisions import create_entry
from muster_operator.proxy.tracker.entries import format_entry
from muster_operator.vipu.simulator.fleet import InjectedFaults


async def test_29_each_instance_has_a_partition_of_its_own_and_its_workers_are_gcds() -> None:
    world = World()
    proxy = await world.start()
    for instance in range(2):
        asked = build_request(instance=instance, size=8, gcds=2)
        taken = await proxy.intents.request(partition_name(asked), asked)
        assert isinstance(taken, PartitionEntry)
        assert taken.state == "active"
        assert (taken.controller, taken.selector) == ("v0:8090", "rack=v0")
    assert {n: (h.size, h.gcds) for n, h in world.vipus[0].held.items()} == {
        "p-train-default-0": (8, 2), "p-train-default-1": (8, 2)
    }  # fmt: skip
    world.assert_they_agree()
    await world.kill()


async def test_29_names_that_would_collide_differ() -> None:
    world = World()
    proxy = await world.start()
    one, other = build_request("uid-1", name="a-b", namespace="c"), build_request("uid-2", name="a", namespace="b-c")
    for asked in (one, other):
        assert isinstance(await proxy.intents.request(partition_name(asked), asked), PartitionEntry)
    assert len(world.vipus[0].held) == 2
    await world.kill()


def test_29_a_namespace_that_is_called_as_anothers_digest_has_names_of_its_own() -> None:
    name = partition("b-c", "a", 0)
    *_, namespace, _ = name.split("-")
    assert partition(namespace.lower(), "a-b-c", 0) != name, "namespaces have no capital letters"


async def test_30_the_same_attempt_again_changes_nothing() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    first = await proxy.intents.request(partition_name(asked), asked)
    calls, writes = list(world.vipus[0].calls), world.api.writes
    assert await proxy.intents.request(partition_name(asked), asked) == first
    assert (world.vipus[0].calls, world.api.writes) == (calls, writes)
    await world.kill()


async def test_30_a_higher_attempt_resets_once() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    again = msgspec.structs.replace(asked, attempt=1)
    for _ in range(2):
        taken = await proxy.intents.request(partition_name(asked), again)
        assert isinstance(taken, PartitionEntry)
        assert (taken.state, taken.attempt, taken.reset) == ("active", 1, False)
    assert world.vipus[0].calls == [("create", partition_name(asked)), ("reset", partition_name(asked))]
    old = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(old, PartitionRefusal)
    assert old.why == "OldAttempt"
    await world.kill()


async def test_30_another_job_is_refused_and_nothing_changes() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    calls, data = list(world.vipus[0].calls), dict(world.api.data)
    theirs = msgspec.structs.replace(asked, job="uid-2", attempt=9)
    for answer in (
        await proxy.intents.request(partition_name(asked), theirs),
        await proxy.intents.release(partition_name(asked), "uid-2"),
    ):
        assert isinstance(answer, PartitionRefusal)
        assert answer.why == "NotOurs"
    assert (world.vipus[0].calls, world.api.data) == (calls, data)
    await world.kill()


async def test_a_higher_attempt_with_another_size_recreates_the_partition() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    other = msgspec.structs.replace(asked, size=8)
    refused = await proxy.intents.request(partition_name(asked), other)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Invalid"
    await proxy.intents.request(partition_name(asked), msgspec.structs.replace(other, attempt=1))
    assert world.vipus[0].held[partition_name(asked)].size == 8
    world.assert_they_agree()
    await world.kill()


async def test_34_a_released_partition_loses_its_entry() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    assert await proxy.intents.release(partition_name(asked), asked.job) is None
    assert await proxy.intents.release(partition_name(asked), asked.job) is None
    assert world.api.data == {}
    assert world.vipus[0].held == {}
    await world.kill()


async def test_34_v_ipu_is_down_and_the_entry_says_so_until_it_is_back() -> None:
    world = World()
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, 0.05))
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    left = await proxy.intents.release(partition_name(asked), asked.job)
    assert isinstance(left, PartitionEntry)
    assert left.state == "deleting"
    await world.until(lambda: "v0:8090: no answer" in world.api.data[partition_name(asked)], "the reason")
    written = world.api.writes
    await asyncio.sleep(0.05)
    assert world.api.writes == written, "the same reason is written once"
    world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults())
    await world.until(lambda: world.api.data == {}, "the entry goes")
    await world.kill()


async def test_35_let_go_while_it_is_being_made_leaves_nothing() -> None:
    world = World(delay_s=0.05)
    proxy = await world.start()
    asked = build_request()
    making = asyncio.create_task(proxy.intents.request(partition_name(asked), asked))
    await world.until(lambda: partition_name(asked) in world.vipus[0].held, "it is being made")
    assert await proxy.intents.release(partition_name(asked), asked.job) is None
    refused = await making
    assert isinstance(refused, PartitionRefusal)
    await world.wait_idle()
    assert (world.api.data, world.vipus[0].held) == ({}, {})
    await world.kill()


async def test_idle_costs_neither_a_write_nor_a_question() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    await world.wait_idle()
    written, questions = world.api.writes, world.vipus[0].reads
    await asyncio.sleep(0.05)
    assert (world.api.writes, world.vipus[0].reads) == (written, questions)
    await world.kill()


async def test_many_intents_go_together_in_few_writes() -> None:
    world = World(64)
    proxy = await world.start()
    wishes = [build_request(f"uid-{i}", name=f"job{i}", size=1) for i in range(40)]
    taken = await asyncio.gather(*(proxy.intents.request(partition_name(each), each) for each in wishes))
    assert all(isinstance(each, PartitionEntry) and each.state == "active" for each in taken)
    assert world.api.writes < 40, "40 partitions are 80 changes"
    world.assert_they_agree()
    await world.kill()


async def test_no_room_is_reported_without_a_write() -> None:
    world = World(8)
    proxy = await world.start()
    await world.wait_idle()
    written = world.api.writes
    asked = build_request(size=16)
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    assert [fact for fact in ("v0:8090", "0 free", "16 IPUs") if fact not in refused.message] == []
    assert world.api.writes == written
    await world.kill()


async def test_two_at_once_for_the_last_room_are_one_taken_and_one_refused() -> None:
    world = World(8)
    proxy = await world.start()
    one, other = build_request("uid-1", name="a", size=8), build_request("uid-2", name="b", size=8)
    taken = await asyncio.gather(*(proxy.intents.request(partition_name(each), each) for each in (one, other)))
    assert sorted(type(each).__name__ for each in taken) == ["PartitionEntry", "PartitionRefusal"]
    await world.wait_idle()
    world.assert_they_agree()
    await world.kill()


async def test_a_lost_partition_is_recreated_and_reported() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    world.vipus[0].inner.clocked_fleet.forget(partition_name(asked))
    await proxy.capacity.count_ipus()
    await world.wait_idle()
    entry = proxy.store.find_entry(partition_name(asked))
    assert entry is not None
    assert entry.state == "active"
    assert "V-IPU" in entry.message
    world.assert_they_agree()
    assert proxy.metrics.registry.get_sample_value("muster_vipu_proxy_vanished_total") == 1
    await world.kill()


async def test_a_partition_that_the_tracker_does_not_know_is_left_alone() -> None:
    world = World()
    asked = build_request()
    world.vipus[0].inner.clocked_fleet.create(partition_name(asked), 4, 1)
    proxy = await world.start()
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Refused"
    assert [fact for fact in (partition_name(asked), "tracker") if fact not in refused.message] == []
    assert partition_name(asked) in world.vipus[0].held
    await world.kill()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 3}, "1, 2, 4, 8, 16, 32, 64"),
        ({"size": 3}, "size: 3"),
        ({"size": 128}, "size: 128"),
        ({"size": 0}, "size: 0"),
        ({"gcds": 3}, "gcds: 3"),
        ({"attempt": -1}, "attempt"),
        ({"job": ""}, "job"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused_by_name(changes: dict[str, object], told: str) -> None:
    world = World()
    proxy = await world.start()
    refused = await proxy.intents.request("p-x-y-0", msgspec.structs.replace(build_request(), **changes))
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Invalid"
    assert told in refused.message
    await world.kill()


@pytest.mark.parametrize(
    "name",
    ["x-a-b-0", "p-", "p-a/b", "p-a b", "p-a\nb", "p-ä-b-0", "p-" + "a" * 300, "p-a-b-0.unreadable",
     "p-muster-parked-0123abcd"],
)  # fmt: skip
async def test_a_name_that_the_tracker_cannot_have_is_refused_and_never_written(name: str) -> None:
    world = World()
    proxy = await world.start()
    refused = await proxy.intents.request(name, build_request())
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Invalid"
    assert repr(name[:80]) in refused.message
    await world.wait_idle()
    assert (world.api.data, world.vipus[0].calls) == ({}, [])
    await world.kill()


async def test_30_two_jobs_requesting_one_name_at_once_do_not_share_it() -> None:
    world = World()
    proxy = await world.start()
    one, other = build_request("uid-1"), build_request("uid-2")
    taken = await asyncio.gather(*(proxy.intents.request(partition_name(each), each) for each in (one, other)))
    # whoever comes first has it
    assert [each.why if isinstance(each, PartitionRefusal) else each.state for each in taken] == ["active", "NotOurs"]
    await world.wait_idle()
    world.assert_they_agree()
    await world.kill()


async def test_nothing_is_reconciled_before_the_quarantine_is_known() -> None:
    world = World()
    world.api.put({partition_name(build_request()): format_entry(create_entry(build_request(), "v0:8090", ""))})
    proxy = world.create_proxy()
    running = asyncio.create_task(proxy.store.run(None))
    await proxy.store.wait_loaded()
    await asyncio.sleep(0.02)
    assert (world.vipus[0].reads, world.vipus[0].calls) == (0, [])
    assert "quarantine" in proxy.explain_unhealthy()
    await proxy.reconciler.verify_all()
    assert proxy.explain_unhealthy() == ""
    await world.until(lambda: "active" in world.api.data[partition_name(build_request())], "it is settled")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await proxy.stop()


async def test_two_proxies_at_once_make_no_twin() -> None:
    world = World(32, 32)
    first = await world.start()
    second = world.create_proxy()
    running = asyncio.create_task(second.store.run(None))
    await second.store.wait_loaded()
    await second.reconciler.verify_all()
    world.api.watchers = [first, second]
    wishes = [build_request(f"uid-{i}", name=f"job{i}") for i in range(6)]
    for attempt in (0, 1):
        asked = [msgspec.structs.replace(each, attempt=attempt) for each in wishes]
        await asyncio.gather(
            *(proxy.intents.request(partition_name(each), each) for each in asked for proxy in (first, second))
        )
        await world.until(lambda: not first.is_busy and not second.is_busy, "both have settled")
        world.assert_they_agree()
        assert len(world.api.data) == 6
    await asyncio.gather(
        *(proxy.intents.release(partition_name(each), each.job) for each in wishes for proxy in (first, second))
    )
    await world.until(lambda: not first.is_busy and not second.is_busy, "both have settled")
    assert (world.api.data, world.held) == ({}, {"v0:8090": {}, "v1:8090": {}})
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await second.stop()
    await world.kill()

"""The tracker: what it holds, who else changes it, and what is done about it."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.proxy.world import FAR_S, TRACKER, World, build_request, partition_name

from muster_kube.api.objects import Metadata
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.intervals import RequestTimeouts
from muster_operator.proxy.tracker import entries
from muster_operator.vipu.simulator.fleet import InjectedFaults

ASKED = build_request()
NAME = partition_name(ASKED)
OTHER = build_request("uid-2", name="other")


async def _taken(world: World) -> None:
    proxy = await world.start()
    await proxy.intents.request(NAME, ASKED)
    await world.wait_idle()


def test_32_an_entry_links_job_and_partition_and_survives_a_round_trip() -> None:
    entry = PartitionEntry(
        job="uid-1", namespace="default", name="train", attempt=2, controller="v:8090", state="deleting"
    )
    text = entries.format_entry(entry)
    assert "\n" not in text
    shown = json.loads(text)
    assert {key: shown[key] for key in ("job", "attempt", "controller", "state")} == {
        "job": "uid-1", "attempt": 2, "controller": "v:8090", "state": "deleting"
    }  # fmt: skip
    assert entries.parse_entries({NAME: text}).entries == {NAME: entry}


@given(st.dictionaries(st.sampled_from(["p-a-b-0", "p-c-d-1", "x"]), st.text()))
def test_any_content_is_decoded_or_kept_aside(data: dict[str, str]) -> None:
    tracked = entries.parse_entries(data)
    assert set(tracked.entries) | set(tracked.unreadable) == set(data)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "JSON"),
        ('{"job": "u", "namespace": "n", "name": "x", "size": 3}', "size: 3"),
        ('{"job": "", "namespace": "n", "name": "x"}', "job"),
        ('{"job": "u", "namespace": "n", "name": "x", "state": "odd"}', "$.state"),
        ("[" * 10000, ""),
    ],
)
def test_the_error_of_an_entry_is_named(text: str, told: str) -> None:
    assert told in entries.parse_entries({NAME: text}).unreadable[NAME]


async def test_garbage_under_a_name_that_is_not_known_is_left_and_refused_for() -> None:
    world = World()
    world.api.put({NAME: "{garbage"})
    proxy = await world.start()
    await world.wait_idle()
    for answer in (await proxy.intents.request(NAME, ASKED), await proxy.intents.release(NAME, "uid-1")):
        assert isinstance(answer, PartitionRefusal)
        assert answer.why == "Refused"
        assert NAME in answer.message
    await proxy.intents.request(partition_name(OTHER), OTHER)
    assert world.api.data[NAME] == "{garbage"
    assert proxy.metrics.registry.get_sample_value("muster_vipu_proxy_tracker_unreadable") == 1
    await world.kill()


async def test_garbage_over_an_entry_that_is_known_is_kept_beside_it() -> None:
    world = World()
    await _taken(world)
    good = world.api.data[NAME]
    world.api.put({NAME: "{garbage"})
    await world.deliver_watch()
    await world.wait_idle()
    assert world.api.data == {NAME: good, f"{NAME}.unreadable": "{garbage"}
    world.assert_they_agree()
    await world.kill()


async def test_an_entry_or_the_whole_map_that_somebody_deletes_is_put_back() -> None:
    world = World()
    await _taken(world)
    good = world.api.data
    gone: list[dict[str, str] | None] = [{}, None]
    for left in gone:
        world.api.put(left)
        await world.deliver_watch()
        await world.wait_idle()
        assert world.api.data == good
    await world.kill()


async def test_an_entry_that_another_proxy_has_ended_is_forgotten() -> None:
    world = World()
    await _taken(world)
    world.vipus[0].inner.clocked_fleet.remove(NAME)
    await world.until(lambda: not world.vipus[0].held, "V-IPU has removed it")
    world.api.put({})
    await world.deliver_watch()
    await world.wait_idle()
    assert world.proxy.store.entries == {}
    assert world.api.data == {}
    await world.kill()


async def test_a_concurrent_write_is_not_overwritten() -> None:
    world = World()
    proxy = await world.start()
    theirs = entries.format_entry(
        PartitionEntry(job="uid-9", namespace="n", name="theirs", controller="v0:8090", state="active")
    )
    world.vipus[0].inner.clocked_fleet.create("p-theirs-n-0", 2, 1)
    world.api.writable.clear()
    taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: world.vipus[0].reads > 0, "it is asked for")
    await asyncio.sleep(0.01)
    world.api.put({"p-theirs-n-0": theirs})
    world.api.writable.set()
    assert isinstance(await taking, PartitionEntry)
    assert set(world.api.data) == {"p-theirs-n-0", NAME}
    assert proxy.metrics.registry.get_sample_value("muster_vipu_proxy_tracker_conflicts_total") == 1
    await world.kill()


async def test_after_a_restore_of_etcd_the_tracker_is_written_again() -> None:
    """resourceVersions go back: what is read is older than what is known, and is what there is."""
    world = World()
    world.api.version = 1000
    await _taken(world)
    world.api.version = 10
    world.api.map = msgspec.structs.replace(
        world.api.map, metadata=Metadata(name=TRACKER, resource_version="10"), data={}
    )
    other = partition_name(OTHER)
    assert isinstance(await world.proxy.intents.request(other, OTHER), PartitionEntry)
    await world.until(lambda: set(world.api.data) == {NAME, other}, "what V-IPU still has is written back")
    assert world.proxy.metrics.registry.get_sample_value("muster_vipu_proxy_tracker_conflicts_total") < 5
    await world.kill()


async def test_a_full_tracker_refuses_and_still_lets_go() -> None:
    world = World()
    long = "x" * 103_000
    names = [f"p-{i}-n-0" for i in range(10)]
    world.api.put(
        {n: entries.format_entry(PartitionEntry(job=n, namespace=long, name="n", state="active")) for n in names}
    )
    proxy = await world.start()
    refused = await proxy.intents.request(NAME, ASKED)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Full"
    assert "10 partitions" in refused.message
    assert world.vipus[0].calls == []
    assert await proxy.intents.release(names[0], names[0]) is None
    assert isinstance(await proxy.intents.request(NAME, ASKED), PartitionEntry)
    await world.kill()


async def test_in_a_tracker_without_room_partitions_lose_their_messages_and_go_on() -> None:
    world = World()
    await _taken(world)
    entry = entries.parse_entries({NAME: world.api.data[NAME]}).entries[NAME]
    long = PartitionEntry(job="x", namespace="n", name="", state="active", controller="v0:8090")
    fill = (
        entries.TRACKER_LIMIT
        - entries.measure_size(dict(world.api.data))
        - entries.measure_size({"p-x-n-0": entries.format_entry(long)})
    )
    full = {"p-x-n-0": entries.format_entry(msgspec.structs.replace(long, name="x" * (fill - 32)))}
    world.api.put(dict(world.api.data) | full)
    await world.deliver_watch()
    said = msgspec.structs.replace(entry, state="deleting", message="V-IPU says no, at length: " + "no " * 60)
    # as it is while V-IPU does not let it go
    world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    assert (
        await world.proxy.store.change(NAME, lambda _: said)
        == entries.parse_entries(dict(world.api.data)).entries[NAME]
    )
    left = entries.parse_entries(dict(world.api.data)).entries[NAME]
    assert (left.state, left.message) == ("deleting", "")
    assert entries.measure_size(dict(world.api.data)) <= entries.TRACKER_LIMIT
    await world.kill()


def test_a_tracker_of_two_thousand_usual_entries_is_not_full() -> None:
    data = {}
    for i in range(2000):
        entry = PartitionEntry(job="123e4567-e89b-12d3-a456-426614174000", namespace="team-of-people",
        name=f"training-{i}",
                      controller="controller-1.example:8090", selector="ipunode=node1", state="active",
                      since="2026-01-01T00:00:00Z")  # fmt: skip
        data[f"p-training-{i}-team-of-people-12345678-0"] = entries.format_entry(entry)
    assert entries.sum_costs(data) <= entries.TRACKER_LIMIT
    assert sum(map(len, data.values())) < 1 << 20


async def test_the_api_server_is_away_and_the_wish_is_refused_with_the_reason() -> None:
    world = World()
    proxy = await world.start(timeouts=RequestTimeouts(0.05, 0.05))
    await world.wait_idle()
    world.api.away = True
    refused = await proxy.intents.request(NAME, ASKED)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Unreachable"
    assert "tracker" in refused.message
    world.api.away = False
    proxy.intents._timeouts = RequestTimeouts(FAR_S, FAR_S)
    assert isinstance(await proxy.intents.request(NAME, ASKED), PartitionEntry)
    world.assert_they_agree()
    await world.kill()


async def test_an_entry_that_names_no_controller_can_be_ended_by_hand() -> None:
    world = World()
    entry = PartitionEntry(job="uid-1", namespace="n", name="x", controller="", state="deleting")
    world.api.put(
        {
            NAME: entries.format_entry(entry),
            "p-b-n-0": entries.format_entry(msgspec.structs.replace(entry, state="creating")),
        }
    )
    proxy = await world.start()
    await world.wait_idle()
    assert set(world.api.data) == {"p-b-n-0"}
    left = proxy.store.find_entry("p-b-n-0")
    assert left is not None
    assert left.message == "controller: '': expected host:port"
    await world.kill()

"""The tracker: what it holds, who else changes it, and what is done about it."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.proxy.world import FAR_S, World, called, wish

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.partitions.intents import Waits
from muster_operator.proxy.tracker import entries as tracker
from muster_operator.vipu.simulator.fleet import Faults

ASKED = wish()
NAME = called(ASKED)
OTHER = wish("uid-2", name="other")


async def _taken(world: World) -> None:
    core = await world.start()
    await core.taking.take(NAME, ASKED)
    await world.quiet()


def test_32_an_entry_links_job_and_partition_and_comes_back_as_it_was() -> None:
    entry = PartitionEntry(
        job="uid-1", namespace="default", name="train", attempt=2, controller="v:8090", state="deleting"
    )
    text = tracker.written(entry)
    assert "\n" not in text
    shown = json.loads(text)
    assert {key: shown[key] for key in ("job", "attempt", "controller", "state")} == {
        "job": "uid-1", "attempt": 2, "controller": "v:8090", "state": "deleting"
    }  # fmt: skip
    assert tracker.read({NAME: text}).entries == {NAME: entry}


@given(st.dictionaries(st.sampled_from(["p-a-b-0", "p-c-d-1", "x"]), st.text()))
def test_whatever_stands_in_it_is_read_or_kept_aside(data: dict[str, str]) -> None:
    tracked = tracker.read(data)
    assert set(tracked.entries) | set(tracked.unreadable) == set(data)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "one line of JSON"),
        ('{"job": "u", "namespace": "n", "name": "x", "size": 3}', "size: 3: expected a power of two"),
        ('{"job": "", "namespace": "n", "name": "x"}', "job"),
        ('{"job": "u", "namespace": "n", "name": "x", "state": "odd"}', "$.state"),
        ("[" * 10000, ""),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(text: str, told: str) -> None:
    assert told in tracker.read({NAME: text}).unreadable[NAME]


async def test_garbage_under_a_name_that_is_not_known_is_left_and_refused_for() -> None:
    world = World()
    world.api.put({NAME: "{garbage"})
    core = await world.start()
    await world.quiet()
    for answer in (await core.taking.take(NAME, ASKED), await core.taking.free(NAME, "uid-1")):
        assert isinstance(answer, PartitionRefusal)
        assert answer.why == "Refused"
        assert "cannot be read" in answer.message
    await core.taking.take(called(OTHER), OTHER)
    assert world.api.data[NAME] == "{garbage"
    assert core.metrics.registry.get_sample_value("muster_vipu_proxy_tracker_unreadable") == 1
    await world.kill()


async def test_garbage_over_an_entry_that_is_known_is_kept_beside_it() -> None:
    world = World()
    await _taken(world)
    good = world.api.data[NAME]
    world.api.put({NAME: "{garbage"})
    await world.seen()
    await world.quiet()
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
        await world.seen()
        await world.quiet()
        assert world.api.data == good
    await world.kill()


async def test_an_entry_that_another_proxy_has_ended_is_forgotten() -> None:
    world = World()
    await _taken(world)
    world.vipus[0].inner.keeper.remove(NAME)
    await world.until(lambda: not world.vipus[0].held, "V-IPU has removed it")
    world.api.put({})
    await world.seen()
    await world.quiet()
    assert world.core.store.entries == {}
    assert world.api.data == {}
    await world.kill()


async def test_what_another_writes_meanwhile_is_not_written_over() -> None:
    world = World()
    core = await world.start()
    theirs = tracker.written(
        PartitionEntry(job="uid-9", namespace="n", name="theirs", controller="v0:8090", state="active")
    )
    world.vipus[0].inner.keeper.create("p-theirs-n-0", 2, 1)
    world.api.held.clear()
    taking = asyncio.create_task(core.taking.take(NAME, ASKED))
    await world.until(lambda: world.vipus[0].asked > 0, "it is asked for")
    await asyncio.sleep(0.01)
    world.api.put({"p-theirs-n-0": theirs})
    world.api.held.set()
    assert isinstance(await taking, PartitionEntry)
    assert set(world.api.data) == {"p-theirs-n-0", NAME}
    assert core.metrics.registry.get_sample_value("muster_vipu_proxy_tracker_conflicts_total") == 1
    await world.kill()


async def test_a_full_tracker_refuses_and_still_lets_go() -> None:
    world = World()
    long = "x" * 103_000
    names = [f"p-{i}-n-0" for i in range(10)]
    world.api.put({n: tracker.written(PartitionEntry(job=n, namespace=long, name="n", state="active")) for n in names})
    core = await world.start()
    refused = await core.taking.take(NAME, ASKED)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Full"
    assert "10 partitions" in refused.message
    assert world.vipus[0].calls == []
    assert await core.taking.free(names[0], names[0]) is None
    assert isinstance(await core.taking.take(NAME, ASKED), PartitionEntry)
    await world.kill()


async def test_in_a_tracker_without_room_partitions_lose_their_messages_and_go_on() -> None:
    world = World()
    await _taken(world)
    entry = tracker.read({NAME: world.api.data[NAME]}).entries[NAME]
    long = PartitionEntry(job="x", namespace="n", name="", state="active", controller="v0:8090")
    fill = tracker.LIMIT - tracker.size(dict(world.api.data)) - tracker.size({"p-x-n-0": tracker.written(long)})
    full = {"p-x-n-0": tracker.written(msgspec.structs.replace(long, name="x" * (fill - 32)))}
    world.api.put(dict(world.api.data) | full)
    await world.seen()
    said = msgspec.structs.replace(entry, state="deleting", message="V-IPU says no, at length: " + "no " * 60)
    # as it is while V-IPU does not let it go
    world.vipus[0].inner.keeper.set_faults(Faults(down=True))
    assert await world.core.store.change(NAME, lambda _: said) == tracker.read(dict(world.api.data)).entries[NAME]
    left = tracker.read(dict(world.api.data)).entries[NAME]
    assert (left.state, left.message) == ("deleting", "")
    assert tracker.size(dict(world.api.data)) <= tracker.LIMIT
    await world.kill()


def test_a_tracker_of_two_thousand_usual_entries_is_not_full() -> None:
    data = {}
    for i in range(2000):
        entry = PartitionEntry(
            job="123e4567-e89b-12d3-a456-426614174000",
            namespace="team-of-people",
            name=f"training-{i}",
            controller="controller-1.example:8090",
            selector="ipunode=node1",
            state="active",
            since="2026-01-01T00:00:00Z",
        )
        data[f"p-training-{i}-team-of-people-12345678-0"] = tracker.written(entry)
    assert tracker.costs(data) <= tracker.LIMIT
    assert sum(map(len, data.values())) < 1 << 20


async def test_the_api_server_is_away_and_the_wish_is_refused_with_the_reason() -> None:
    world = World()
    core = await world.start(waits=Waits(0.05, 0.05))
    await world.quiet()
    world.api.away = True
    refused = await core.taking.take(NAME, ASKED)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Unreachable"
    assert "cannot be written" in refused.message
    world.api.away = False
    core.taking._waits = Waits(FAR_S, FAR_S)
    assert isinstance(await core.taking.take(NAME, ASKED), PartitionEntry)
    world.assert_they_agree()
    await world.kill()


async def test_an_entry_that_names_no_controller_can_be_ended_by_hand() -> None:
    world = World()
    entry = PartitionEntry(job="uid-1", namespace="n", name="x", controller="", state="deleting")
    world.api.put(
        {NAME: tracker.written(entry), "p-b-n-0": tracker.written(msgspec.structs.replace(entry, state="creating"))}
    )
    core = await world.start()
    await world.quiet()
    assert set(world.api.data) == {"p-b-n-0"}
    left = core.store.entry("p-b-n-0")
    assert left is not None
    assert left.message == "controller: '': expected host:port"
    await world.kill()

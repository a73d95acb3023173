"""The list of controllers, and how several are used."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.operator.proxy.world import FAR_S, World, build_request, partition_name

from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.controllers.list_source import ControllerListSource
from muster_operator.proxy.controllers.list_syntax import ControllerEndpoint, parse_address, parse_controller_list
from muster_operator.proxy.controllers.registry import ControllerRegistry
from muster_operator.proxy.intervals import RequestTimeouts
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.backends import create_controller
from muster_operator.vipu.controller import VipuController
from muster_operator.vipu.simulator.fleet import InjectedFaults


def test_55_the_published_list_is_read_in_order() -> None:
    endpoints, complaints = parse_controller_list("pod001:8090:ipunode=node1,pod002:8091:ipunode=node2")
    assert endpoints == (
        ControllerEndpoint("pod001", 8090, "ipunode=node1"),
        ControllerEndpoint("pod002", 8091, "ipunode=node2"),
    )
    assert complaints == ()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("b", "port: ''"),
        ("b:8090", "label: ''"),
        ("b:x:k=v", "port: 'x'"),
        ("b:0:k=v", "port: '0'"),
        ("b:65536:k=v", "port: '65536'"),
        ("b:8090:k", "label: 'k'"),
        ("b:8090:=v", "label: '=v'"),
        ("b:8090:k=v v", "label: 'k=v v'"),
        (":8090:k=v", "host: ''"),
        ("b;rm -rf:8090:k=v", "host:"),
        ("a:8090:k=w", "a:8090 "),
        ("[::1:8090:k=v", "host:"),
        ("b:٣:k=v", "port:"),
    ],
)
def test_55_a_bad_entry_is_named_and_skipped(word: str, told: str) -> None:
    endpoints, complaints = parse_controller_list(f"a:8090:k=v,{word}\n, c:8090:x.io/k=w")
    assert [place.address for place in endpoints] == ["a:8090", "c:8090"]
    [complaint] = complaints
    assert complaint.startswith("entry 2, ")
    assert told in complaint


def test_an_ipv6_address_and_a_removed_controllers_address_are_read() -> None:
    [place], _ = parse_controller_list("[fd00::1]:8090:k=v")
    assert place.address == "[fd00::1]:8090"
    assert parse_address("[fd00::1]:8090") == ControllerEndpoint("[fd00::1]", 8090)
    assert parse_address("a b:1") is None
    assert parse_address("") is None


@pytest.mark.parametrize("backend", ["sim", "vipu"])
def test_a_back_end_gets_an_ipv6_address_without_brackets_and_keeps_the_listed_one(backend: str) -> None:
    [place], _ = parse_controller_list("[fd00::1]:8090:k=v")
    asked = []

    def make(host: str, port: int) -> VipuController:
        asked.append(host)
        return create_controller(backend, host, port)

    assert ControllerRegistry(make, ProxyMetrics()).get(place).address == place.address
    assert asked == ["fd00::1"]


async def test_55_they_are_tried_in_order_until_one_has_room() -> None:
    world = World(4, 16)
    proxy = await world.start()
    got = []
    for instance in range(3):
        asked = build_request(instance=instance)
        taken = await proxy.intents.request(partition_name(asked), asked)
        assert isinstance(taken, PartitionEntry)
        got.append((taken.controller, taken.selector))
    assert got == [("v0:8090", "rack=v0"), ("v1:8090", "rack=v1"), ("v1:8090", "rack=v1")]
    world.assert_they_agree()
    await world.kill()


async def test_55_a_creation_without_room_goes_to_the_next_controller() -> None:
    world = World(4, 4)
    proxy = await world.start()
    first = world.vipus[0]

    async def roomy(size: int) -> int:
        return 1

    first.count_free_blocks = roomy  # type: ignore[method-assign]
    first.inner.clocked_fleet.create("theirs", 4, 1)
    asked = build_request()
    taken = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(taken, PartitionEntry)
    assert (taken.state, taken.controller) == ("active", "v1:8090")
    other = build_request(instance=1)
    refused = await proxy.intents.request(partition_name(other), other)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    assert set(world.api.data) == {partition_name(asked)}
    await world.kill()


async def test_55_one_that_is_down_is_passed_over_and_named() -> None:
    world = World(16, 16)
    proxy = await world.start()
    world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    asked = build_request(size=16, gcds=1)
    taken = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(taken, PartitionEntry)
    assert taken.controller == "v1:8090"
    room = await proxy.capacity.count_partitions(2)
    assert (room.available, room.num_of_partitions) == (True, 0)
    assert "v0:8090" in room.message
    assert "v1:8090" not in room.message
    world.vipus[1].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    room = await proxy.capacity.count_partitions(2)
    assert (room.available, room.num_of_partitions) == (False, 0)
    assert [address for address in ("v0:8090", "v1:8090") if address not in room.message] == []
    other = build_request(instance=1)
    refused = await proxy.intents.request(partition_name(other), other)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "Unreachable"
    assert [address for address in ("v0:8090", "v1:8090") if address not in refused.message] == []
    await world.kill()


async def test_56_a_removed_controllers_live_partition_is_still_let_go() -> None:
    world = World(16, 16)
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    listing = ControllerListSource(proxy.controllers)
    listing.apply("v1:8090:rack=v1", "test")
    other = build_request(instance=1)
    taken = await proxy.intents.request(partition_name(other), other)
    assert isinstance(taken, PartitionEntry)
    assert taken.controller == "v1:8090"
    assert await proxy.intents.release(partition_name(asked), asked.job) is None
    assert world.vipus[0].held == {}
    await world.kill()


async def test_56_also_by_a_proxy_that_never_knew_it() -> None:
    world = World(16, 16)
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    await world.kill()
    world.gate.open()
    proxy = await world.start(endpoints="v1:8090:rack=v1")
    assert await proxy.intents.release(partition_name(asked), asked.job) is None
    assert world.vipus[0].held == {}
    await world.kill()


async def test_56_an_edited_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(16, 16)
    proxy = await world.start()
    file = tmp_path / "controllers.yaml"
    file.write_text("v0:8090:rack=v0")
    following = asyncio.create_task(ControllerListSource(proxy.controllers).follow_file(file, reread_s=0.005))
    await world.until(lambda: len(proxy.controllers.endpoints) == 1, "the first list")
    with caplog.at_level(logging.ERROR):
        file.write_text("v0:8090:rack=v0,v1:nonsense,v1:8090:rack=v1")
        await world.until(lambda: len(proxy.controllers.endpoints) == 2, "the second list")
    assert [fact for fact in ("entry 2", "'v1:nonsense'", "port: 'nonsense'", "65535") if fact not in caplog.text] == []
    assert proxy.metrics.registry.get_sample_value("muster_vipu_proxy_controllers", {"entries": "bad"}) == 1
    file.unlink()
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        await world.until(lambda: str(file) in caplog.text, "it is told")
    assert len(proxy.controllers.endpoints) == 2
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await world.kill()


async def test_a_slow_controller_delays_no_other_answer() -> None:
    world = World(16, 16)
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, 0.05))
    first = build_request()
    await proxy.intents.request(partition_name(first), first)
    asked = asyncio.Event()
    slow = world.vipus[0]
    real = slow.inner.find_partition

    async def never(name: str) -> object:
        asked.set()
        return await asyncio.Event().wait()

    slow.inner.find_partition = never  # type: ignore[method-assign,assignment]
    under_way = await proxy.intents.release(partition_name(first), first.job)
    assert isinstance(under_way, PartitionEntry)
    assert under_way.state == "deleting"
    assert asked.is_set()
    ControllerListSource(proxy.controllers).apply("v1:8090:rack=v1", "test")
    other = build_request("uid-2", name="b")
    taken = await proxy.intents.request(partition_name(other), other)
    assert isinstance(taken, PartitionEntry)
    slow.inner.find_partition = real  # type: ignore[method-assign]
    await world.kill()

"""The wording of the proxy's messages to the owner of a job, each message once."""

from tests.operator.proxy.world import World, build_request, partition_name, quarantined

from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.vipu.controller import Ipu
from muster_operator.vipu.simulator.fleet import InjectedFaults


async def test_of_a_partition_that_v_ipu_lost() -> None:
    world = World()
    proxy = await world.start()
    asked = build_request()
    await proxy.intents.request(partition_name(asked), asked)
    world.vipus[0].inner.clocked_fleet.forget(partition_name(asked))
    await proxy.capacity.count_ipus()
    await world.wait_idle()
    entry = proxy.store.find_entry(partition_name(asked))
    assert entry is not None
    assert entry.message == "V-IPU no longer had it: created again"
    await world.kill()


async def test_of_no_room_for_want_of_healthy_ipus() -> None:
    world = World(32)
    proxy = await world.start(quarantined(Ipu("10.1.1.3", 0)))
    asked = build_request(size=32)
    refused = await proxy.intents.request(partition_name(asked), asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.message == "v0:8090: 1 free blocks of 32 IPUs, 1 of them with quarantined IPUs"
    await world.kill()


async def test_of_a_partition_that_the_tracker_does_not_know() -> None:
    world = World()
    asked = build_request()
    name = partition_name(asked)
    world.vipus[0].inner.clocked_fleet.create(name, 4, 1)
    proxy = await world.start()
    refused = await proxy.intents.request(name, asked)
    assert isinstance(refused, PartitionRefusal)
    assert refused.message == f"v0:8090 has a partition {name} that is not in the tracker: remove it from V-IPU"
    await world.kill()


async def test_of_controllers_that_do_not_answer() -> None:
    world = World(16)
    proxy = await world.start()
    world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(down=True))
    assert (await proxy.capacity.count_partitions(2)).message == "v0:8090: no answer"
    await world.kill()

"""V-IPU that does late what it has not answered for, that does not get on with it, or that does something else."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.operator.proxy.world import FAR_S, FAST, Vipu, World, build_request, partition_name, quarantined

from muster_operator.job.names import PARKED_PREFIX
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.proxy.intervals import RequestTimeouts
from muster_operator.vipu.controller import Ipu, NoRoom, VipuError, VipuPartition, VipuUnreachable
from muster_operator.vipu.simulator.fleet import InjectedFaults

ASKED = build_request(size=2)
NAME = partition_name(ASKED)
BAD = quarantined(Ipu("10.1.1.1", 0))
NEVER_LATE = replace(FAST, late_s=FAR_S)


class _LateCreations:
    """Creations of names that begin so are not answered, but kept; later ones raise ``then``. once: only the first."""

    def __init__(self, vipu: Vipu, prefix: str, then: VipuError | None = None, *, once: bool = False) -> None:
        self._real = vipu.create
        self._prefix = prefix
        self._then = then
        self._once = once
        self.kept: list[tuple[str, int, int]] = []
        vipu.create = self._create  # type: ignore[method-assign]

    async def _create(self, name: str, size: int, gcds: int) -> None:
        if not name.startswith(self._prefix) or (self.kept and self._once):
            return await self._real(name, size, gcds)
        if self.kept and self._then is not None:
            raise self._then
        self.kept.append((name, size, gcds))
        raise VipuUnreachable("no answer in time")

    async def happens(self, number: int = 0) -> None:
        await self._real(*self.kept[number])


async def _wait_looked_for(world: World, name: str) -> None:
    """V-IPU has been asked for it, has none, and that was taken in."""
    vipu = world.vipus[0]
    real, looks = vipu.find_partition, 0

    async def partition(asked: str) -> VipuPartition | None:
        nonlocal looks
        looks += asked == name
        return await real(asked)

    vipu.find_partition = partition  # type: ignore[method-assign,assignment]
    await world.until(lambda: looks >= 3 or name not in world.api.data, "it is looked for")


async def test_35_let_go_before_a_creation_that_happens_later_leaves_nothing() -> None:
    world = World(8)
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, 0.05), intervals=NEVER_LATE)
    late = _LateCreations(world.vipus[0], NAME)
    taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: bool(late.kept), "V-IPU is asked")
    left = await proxy.intents.release(NAME, ASKED.job)
    assert isinstance(left, PartitionEntry)
    assert left.state == "deleting"
    await _wait_looked_for(world, NAME)
    await late.happens()
    await world.until(lambda: not world.api.data, "it is removed and forgotten")
    assert world.vipus[0].held == {}
    await taking
    await world.kill()


async def test_refused_before_a_creation_that_happens_later_leaves_nothing() -> None:
    world = World(8, 8)
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, FAR_S), intervals=NEVER_LATE)
    late = _LateCreations(world.vipus[0], NAME, then=NoRoom("no room"))
    refused = await proxy.intents.request(NAME, ASKED)
    assert isinstance(refused, PartitionRefusal)
    assert refused.why == "NoRoom"
    await _wait_looked_for(world, NAME)
    await late.happens()
    await world.until(lambda: not world.api.data, "it is removed and forgotten")
    assert world.held == {"v0:8090": {}, "v1:8090": {}}
    await world.kill()


@pytest.mark.parametrize("dies", [False, True])
async def test_35_let_go_before_a_creation_that_happens_after_another_one_leaves_nothing(dies: bool) -> None:
    """Nobody may forget it as long as V-IPU may create it once more: not the proxy that has retried with success, and
    not its successor."""
    world = World(8)
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, FAR_S), intervals=NEVER_LATE)
    late = _LateCreations(world.vipus[0], NAME, once=True)
    if dies:
        taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
        await world.until(lambda: bool(late.kept), "V-IPU is asked")
        await world.kill()
        taking.cancel()
        world.gate.open()
        proxy = await world.start(timeouts=RequestTimeouts(FAR_S, FAR_S), intervals=NEVER_LATE)
    taken = await proxy.intents.request(NAME, ASKED)
    assert isinstance(taken, PartitionEntry)
    assert taken.state == "active"
    letting_go = asyncio.create_task(proxy.intents.release(NAME, ASKED.job))
    await world.until(lambda: not world.vipus[0].held, "it is removed")
    await _wait_looked_for(world, NAME)
    await late.happens()
    await world.until(lambda: not world.vipus[0].held, "it is removed again")
    letting_go.cancel()
    await world.kill()


@pytest.mark.parametrize("dies", [False, True])
async def test_35_let_go_before_the_other_of_two_unanswered_creations_happens_leaves_nothing(dies: bool) -> None:
    """What is found is the result of one of them: the other may follow, even if a former proxy has begun it."""
    world = World(8)
    proxy = await world.start(timeouts=RequestTimeouts(FAR_S, FAR_S), intervals=NEVER_LATE)
    late = _LateCreations(world.vipus[0], NAME)
    taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    if dies:
        await world.until(lambda: bool(late.kept), "V-IPU is asked")
        await world.kill()
        taking.cancel()
        world.gate.open()
        proxy = await world.start(timeouts=RequestTimeouts(FAR_S, FAR_S), intervals=NEVER_LATE)
        taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: len(late.kept) > 1, "V-IPU is asked again")
    await late.happens(1)
    taken = await taking
    assert isinstance(taken, PartitionEntry)
    assert taken.state == "active"
    letting_go = asyncio.create_task(proxy.intents.release(NAME, ASKED.job))
    await world.until(lambda: not world.vipus[0].held, "it is removed")
    await _wait_looked_for(world, NAME)
    await late.happens(0)
    await world.until(lambda: not world.vipus[0].held, "it is removed again")
    letting_go.cancel()
    await world.kill()


async def test_what_is_never_made_after_all_is_forgotten() -> None:
    world = World(8)
    proxy = await world.start()
    late = _LateCreations(world.vipus[0], NAME, then=NoRoom("no room"))
    assert isinstance(await proxy.intents.request(NAME, ASKED), PartitionRefusal)
    await world.wait_idle()
    assert (world.api.data, world.vipus[0].held, len(late.kept)) == ({}, {}, 1)
    await world.kill()


async def test_a_parked_one_that_is_made_later_is_found_and_kept() -> None:
    world = World(8, knows_ipus=True)
    bad = quarantined(*(Ipu("10.1.1.1", number) for number in range(4)))  # it is not made smaller
    proxy = await world.start(bad, intervals=NEVER_LATE, timeouts=RequestTimeouts(FAR_S, 0.05))
    late = _LateCreations(world.vipus[0], PARKED_PREFIX, then=NoRoom("no room"))
    taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: bool(late.kept), "one is to be parked")
    park = late.kept[0][0]
    assert isinstance(await proxy.intents.release(NAME, ASKED.job), PartitionEntry | None)
    await _wait_looked_for(world, park)
    await late.happens()
    await world.until(lambda: '"active"' in world.api.data.get(park, ""), "it is parked")
    proxy.update_quarantine({})
    await world.until(lambda: not world.held["v0:8090"], "and released")
    await taking
    await world.kill()


async def test_34_a_parked_one_that_is_never_ready_holds_up_no_deletion() -> None:
    world = World(8)
    proxy = await world.start(BAD, timeouts=RequestTimeouts(FAR_S, 0.05))
    vipu = world.vipus[0]
    real = vipu.create

    async def create(name: str, size: int, gcds: int) -> None:
        if name.startswith(PARKED_PREFIX):
            vipu.inner.clocked_fleet.set_faults(InjectedFaults(stuck=(name,)))
        await real(name, size, gcds)

    vipu.create = create  # type: ignore[method-assign]
    seen = vipu.find_partition

    async def partition(name: str) -> VipuPartition | None:
        found = await seen(name)
        # as of a back end that knows the IPUs of what is ACTIVE alone
        return replace(found, ipus=()) if found is not None and found.state == "CREATING" else found

    vipu.find_partition = partition  # type: ignore[method-assign]
    taking = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: any(name.startswith(PARKED_PREFIX) for name in vipu.held), "one is being parked")
    await proxy.intents.release(NAME, ASKED.job)
    await world.until(lambda: NAME not in world.api.data, "it is let go")
    await taking
    await world.kill()


async def test_53_one_controller_that_does_not_answer_in_time_leaves_the_others_answer() -> None:
    world = World(16, 8)
    proxy = await world.start(intervals=replace(FAST, answer_s=2.5))
    hung = world.vipus[0]

    async def never(*_: object) -> Sequence[VipuPartition]:
        await asyncio.Event().wait()
        return ()

    hung.count_free_blocks = hung.list_partitions = hung.find_partition = never  # type: ignore[method-assign,assignment]
    query, stats = await asyncio.gather(proxy.capacity.count_partitions(4), proxy.capacity.count_ipus())
    assert (query.available, query.num_of_partitions) == (True, 2)
    assert [fact for fact in ("v0:8090", "2.5 s") if fact not in query.message] == []
    assert stats["total"] == {"used": 0, "available": 8}
    taken = await proxy.intents.request(NAME, ASKED)
    assert isinstance(taken, PartitionEntry)
    assert taken.controller == "v1:8090"
    await world.kill()


async def test_one_that_is_made_otherwise_than_asked_for_is_told_and_made_anew_at_the_pace_of_failures() -> None:
    world = World(8)
    proxy = await world.start(
        timeouts=RequestTimeouts(FAR_S, 0.05), intervals=replace(FAST, retry_s=FAR_S, retry_cap_s=FAR_S)
    )
    vipu = world.vipus[0]
    real = vipu.create
    vipu.create = lambda name, size, _gcds: real(name, size, 1)  # type: ignore[method-assign,assignment]
    asked = build_request(size=2, gcds=2)
    assert isinstance(await proxy.intents.request(NAME, asked), PartitionEntry)
    await world.until(lambda: "2 IPUs in 1 GCDs" in world.api.data[NAME], "the reason")
    # once more at once, as the reason is news
    once = [("create", NAME), ("remove", NAME)]
    await world.until(lambda: vipu.calls == [*once, ("create", NAME)], "it is made anew")
    await proxy.intents.release(NAME, asked.job)
    await world.until(lambda: not world.api.data, "it is let go at once")
    assert (vipu.calls, vipu.held) == ([*once, *once], {})
    await world.kill()

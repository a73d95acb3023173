"""The proxy dies at every point between two effects, and the next one goes on: no orphan, no twin, nothing done twice
that may be done once."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.operator.proxy.world import World, build_request, partition_name, quarantined

from muster_operator.job.partition_api import PartitionEntry
from muster_operator.proxy.vipu_proxy import VipuProxy
from muster_operator.vipu.controller import Ipu
from muster_operator.vipu.simulator.fleet import InjectedFaults

ASKED = build_request()
NAME = partition_name(ASKED)
AGAIN = msgspec.structs.replace(ASKED, attempt=1)
LARGER = msgspec.structs.replace(ASKED, attempt=1, size=8)
BAD = quarantined(Ipu("10.1.1.1", 2), Ipu("10.1.1.1", 3))

Act = Callable[[VipuProxy], Awaitable[object]]


async def take(proxy: VipuProxy) -> object:
    return await proxy.intents.request(NAME, ASKED)


async def take_again(proxy: VipuProxy) -> object:
    return await proxy.intents.request(NAME, AGAIN)


async def take_larger(proxy: VipuProxy) -> object:
    return await proxy.intents.request(NAME, LARGER)


async def free(proxy: VipuProxy) -> object:
    return await proxy.intents.release(NAME, ASKED.job)


async def vanish(proxy: VipuProxy) -> object:
    return await proxy.capacity.count_ipus()


# what was done before, what is interrupted, what is quarantined meanwhile
SCENES: dict[str, tuple[list[Act], Act, dict[str, str]]] = {
    "create": ([], take, {}),
    "reset": ([take], take_again, {}),
    "another size": ([take], take_larger, {}),
    "free": ([take], free, {}),
    "park": ([], take, BAD),
    "park at a reset": ([take], take_again, BAD),
}


async def _act(world: World, act: Act) -> bool:
    """False: it died meanwhile."""
    acting = asyncio.ensure_future(act(world.proxy))
    dying = asyncio.create_task(world.gate.is_shut.wait())
    await asyncio.wait([acting, dying], return_when=asyncio.FIRST_COMPLETED)
    survived = not world.gate.is_shut.is_set()
    for task in (acting, dying):
        task.cancel()
    await asyncio.gather(acting, dying, return_exceptions=True)
    return survived


async def _interrupted(scene: str, at: int) -> bool:
    """Whether it was: there are fewer effects else."""
    before, act, bad = SCENES[scene]
    world = World(knows_ipus=True)
    await world.start()
    for each in before:
        assert await _act(world, each)
    await world.wait_idle()
    await world.kill()
    world.gate.open()
    world.vipus[0].calls.clear()
    world.gate.shut_at = at
    await world.start(bad)
    survived = await _act(world, act)
    if survived:
        await _wait_idle_or_dead(world)
        survived = not world.gate.is_shut.is_set()
    await world.kill()
    world.gate.open()
    proxy = await world.start(bad)
    await world.wait_idle()
    # the job asks as it did, and comes to what it wanted
    answer = await act(proxy)
    await world.wait_idle()
    world.assert_they_agree()
    held = set(world.vipus[0].held)
    if act is free:
        assert answer is None
        assert held == set()
    else:
        assert isinstance(answer, PartitionEntry)
        assert answer.state == "active"
        assert NAME in held
        resets = world.vipus[0].calls.count(("reset", NAME))
        creates = world.vipus[0].calls.count(("create", NAME))
        if scene == "reset":
            # the intent is one; a reset whose answer died with the asker is done again, before anybody uses it
            assert 1 <= resets <= 2, world.vipus[0].calls
            assert creates == 0
        if bad:
            on = {ipu for each in await world.vipus[0].list_partitions() if each.name == NAME for ipu in each.ipus}
            assert on.isdisjoint({Ipu("10.1.1.1", 2), Ipu("10.1.1.1", 3)})
            parked = {name for name in held if name.startswith("p-muster-parked-")}
            assert held == {NAME} | parked
            # none, where it died between taking away a large one and making a smaller one
            assert [list(world.vipus[0].held[name].ipus) for name in parked] in ([], [[2, 3]]), "as small as it can be"
            assert parked or not survived
    calls = list(world.vipus[0].calls)
    await act(proxy)
    await world.wait_idle()
    assert world.vipus[0].calls == calls, "asked once more, nothing is done"
    await world.kill()
    return not survived


async def _wait_idle_or_dead(world: World) -> None:
    await world.until(lambda: world.gate.is_shut.is_set() or not world.proxy.reconciler.is_busy, "quiet, or dead")


@pytest.mark.parametrize("scene", SCENES)
async def test_30_32_35_death_between_any_two_effects_leaves_no_orphan_and_no_twin(scene: str) -> None:
    at = 0
    while await _interrupted(scene, at):
        at += 1
        assert at < 100, "it never gets through"
    assert at >= 4, "an intent, a call and what came of it have edges"


async def test_32_killed_between_the_call_and_the_write_the_next_one_finds_it() -> None:
    world = World(delay_s=0.05)
    proxy = await world.start()
    making = asyncio.create_task(proxy.intents.request(NAME, ASKED))
    await world.until(lambda: NAME in world.vipus[0].held, "V-IPU is at it")
    await world.kill()
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    assert '"creating"' in world.api.data[NAME]
    assert ASKED.job in world.api.data[NAME], "it links job and partition"
    world.gate.open()
    await world.start()
    await world.wait_idle()
    world.assert_they_agree()
    assert world.vipus[0].calls == [("create", NAME)]
    await world.kill()


async def test_33_another_release_picks_up_the_tracker_and_touches_nothing() -> None:
    world = World()
    proxy = await world.start()
    await proxy.intents.request(NAME, ASKED)
    await world.kill()
    world.gate.open()
    writes, calls = world.api.writes, list(world.vipus[0].calls)
    proxy = await world.start()
    await world.wait_idle()
    taken = await proxy.intents.request(NAME, ASKED)
    assert isinstance(taken, PartitionEntry)
    assert taken.state == "active"
    assert (world.api.writes, world.vipus[0].calls) == (writes, calls)
    world.assert_they_agree()
    await world.kill()


async def test_an_answer_of_the_tracker_that_is_lost_is_read_again() -> None:
    world = World()
    proxy = await world.start()
    for act in (take, take_again, free):
        world.api.lost_answers = 2
        await act(proxy)
        await world.wait_idle()
        world.assert_they_agree()
    assert world.api.data == {}
    assert world.vipus[0].calls == [("create", NAME), ("reset", NAME), ("remove", NAME)]
    await world.kill()


async def test_an_answer_of_v_ipu_that_is_lost_makes_no_twin() -> None:
    world = World(32, 32)
    proxy = await world.start()
    for lost, act in enumerate((take, take_again, free), 1):
        world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(lose_answers=lost))
        await act(proxy)
        await world.wait_idle()
        world.assert_they_agree()
        assert world.vipus[1].held == {}
    await world.kill()


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 2)),
        st.tuples(st.just("quarantine"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("vanish"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("map-gone"), st.just(0), st.just(0)),
        st.tuples(st.just("key-gone"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("garbage"), st.integers(0, 2), st.just(0)),
    ),
    max_size=14,
)


@given(OPS)
@example([("take", 0, 0), ("map-gone", 0, 0), ("kill", 4, 0), ("free", 0, 0)])
@settings(max_examples=120)
def test_tracker_and_v_ipu_converge(ops: list[tuple[str, int, int]]) -> None:
    asyncio.run(_whatever(ops))


async def _whatever(ops: list[tuple[str, int, int]]) -> None:
    world = World(16, 8, knows_ipus=True)
    bad: dict[str, str] = {}
    wishes = [build_request(f"uid-{i}", name=f"job{i}", size=4) for i in range(3)]
    wanted: dict[int, int] = {}
    await world.start(bad)
    for op, which, number in ops:
        asked = wishes[which % 3]
        name = partition_name(asked)
        if op == "take":
            wanted[which] = max(wanted.get(which, 0), number)
            attempt = msgspec.structs.replace(asked, attempt=wanted[which])
            await _act(world, lambda proxy, attempt=attempt, name=name: proxy.intents.request(name, attempt))  # type: ignore[misc]
        elif op == "free":
            wanted.pop(which, None)
            await _act(world, lambda proxy, asked=asked, name=name: proxy.intents.release(name, asked.job))  # type: ignore[misc]
        elif op == "kill":
            world.gate.shut_at = world.gate.passed + which
        elif op == "lose":
            if which:
                world.api.lost_answers = number
            else:
                world.vipus[0].inner.clocked_fleet.set_faults(InjectedFaults(lose_answers=number))
        elif op == "quarantine":
            bad = quarantined(Ipu(f"10.1.1.{1 + which // 4}", which % 4)) if which < 6 else {}
            world.proxy.update_quarantine(bad)
        elif op == "vanish":
            for vipu in world.vipus:
                if name in vipu.held and world.proxy.store.find_entry(name) is not None:
                    vipu.inner.clocked_fleet.forget(name)
        elif op == "map-gone" and not world.gate.is_shut.is_set():
            await _edit_tracker(world, None)
        elif op in ("key-gone", "garbage") and name in world.api.data and not world.gate.is_shut.is_set():
            if op == "key-gone":
                await _edit_tracker(world, {key: entry for key, entry in world.api.data.items() if key != name})
            elif world.held_anywhere(name):
                await _edit_tracker(world, world.api.data | {name: "{garbage"})
        if world.gate.is_shut.is_set():
            await _revive(world, bad)
    await _wait_idle_or_dead(world)
    await _revive(world, bad)
    await world.wait_idle()
    for index, last in wanted.items():
        asked = msgspec.structs.replace(wishes[index], attempt=last)
        answer = await world.proxy.intents.request(partition_name(asked), asked)
        assert isinstance(answer, PartitionEntry), answer
        assert (answer.state, answer.job) == ("active", asked.job)
    for asked in [each for index, each in enumerate(wishes) if index not in wanted]:
        assert await world.proxy.intents.release(partition_name(asked), asked.job) is None
    await world.proxy.capacity.count_ipus()
    await world.wait_idle()
    world.assert_they_agree()
    jobs = [name for name in world.proxy.store.entries if not name.startswith("p-muster-parked-")]
    assert sorted(jobs) == sorted(partition_name(wishes[index]) for index in wanted)
    await world.kill()


async def _edit_tracker(world: World, data: dict[str, str] | None) -> None:
    """By a person, while the proxy runs: it lives on until it has restored what was removed (docs/vipu.md)."""
    world.gate.shut_at = None
    world.api.put(data)
    await world.deliver_watch()
    await world.wait_idle()


async def _revive(world: World, bad: dict[str, str]) -> None:
    await world.kill()
    world.gate.open()
    await world.start(bad)

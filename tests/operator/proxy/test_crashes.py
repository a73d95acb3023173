"""The proxy dies at every point between two effects, and the next one goes on: no orphan, no twin, nothing done twice
that may be done once."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.proxy.world import World, called, quarantined, wish

from muster_operator.job.partition_api import PartitionEntry
from muster_operator.proxy.core import Core
from muster_operator.vipu.controller import Ipu
from muster_operator.vipu.simulator.fleet import Faults

ASKED = wish()
NAME = called(ASKED)
AGAIN = msgspec.structs.replace(ASKED, attempt=1)
LARGER = msgspec.structs.replace(ASKED, attempt=1, size=8)
BAD = quarantined(Ipu("10.1.1.1", 2), Ipu("10.1.1.1", 3))

Act = Callable[[Core], Awaitable[object]]


async def take(core: Core) -> object:
    return await core.taking.take(NAME, ASKED)


async def take_again(core: Core) -> object:
    return await core.taking.take(NAME, AGAIN)


async def take_larger(core: Core) -> object:
    return await core.taking.take(NAME, LARGER)


async def free(core: Core) -> object:
    return await core.taking.free(NAME, ASKED.job)


async def vanish(core: Core) -> object:
    return await core.counting.stats()


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
    acting = asyncio.ensure_future(act(world.core))
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
    await world.quiet()
    await world.kill()
    world.gate.open()
    world.vipus[0].calls.clear()
    world.gate.shut_at = at
    await world.start(bad)
    survived = await _act(world, act)
    if survived:
        await _quiet_or_dead(world)
        survived = not world.gate.is_shut.is_set()
    await world.kill()
    world.gate.open()
    core = await world.start(bad)
    await world.quiet()
    # the job asks as it did, and comes to what it wanted
    answer = await act(core)
    await world.quiet()
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
            on = {ipu for each in await world.vipus[0].partitions() if each.name == NAME for ipu in each.ipus}
            assert on.isdisjoint({Ipu("10.1.1.1", 2), Ipu("10.1.1.1", 3)})
            parked = {name for name in held if name.startswith("p-muster-parked-")}
            assert held == {NAME} | parked
            # none, where it died between taking away a large one and making a smaller one
            assert [list(world.vipus[0].held[name].ipus) for name in parked] in ([], [[2, 3]]), "as small as it can be"
            assert parked or not survived
    calls = list(world.vipus[0].calls)
    await act(core)
    await world.quiet()
    assert world.vipus[0].calls == calls, "asked once more, nothing is done"
    await world.kill()
    return not survived


async def _quiet_or_dead(world: World) -> None:
    await world.until(lambda: world.gate.is_shut.is_set() or not world.core.settling.is_busy, "quiet, or dead")


@pytest.mark.parametrize("scene", SCENES)
async def test_30_32_35_death_between_any_two_effects_leaves_no_orphan_and_no_twin(scene: str) -> None:
    at = 0
    while await _interrupted(scene, at):
        at += 1
        assert at < 100, "it never gets through"
    assert at >= 4, "an intent, a call and what came of it have edges"


async def test_32_killed_between_the_call_and_the_write_the_next_one_finds_it() -> None:
    world = World(delay_s=0.05)
    core = await world.start()
    making = asyncio.create_task(core.taking.take(NAME, ASKED))
    await world.until(lambda: NAME in world.vipus[0].held, "V-IPU is at it")
    await world.kill()
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    assert '"creating"' in world.api.data[NAME]
    assert ASKED.job in world.api.data[NAME], "it links job and partition"
    world.gate.open()
    await world.start()
    await world.quiet()
    world.assert_they_agree()
    assert world.vipus[0].calls == [("create", NAME)]
    await world.kill()


async def test_33_another_release_picks_up_the_tracker_and_touches_nothing() -> None:
    world = World()
    core = await world.start()
    await core.taking.take(NAME, ASKED)
    await world.kill()
    world.gate.open()
    writes, calls = world.api.writes, list(world.vipus[0].calls)
    core = await world.start()
    await world.quiet()
    taken = await core.taking.take(NAME, ASKED)
    assert isinstance(taken, PartitionEntry)
    assert taken.state == "active"
    assert (world.api.writes, world.vipus[0].calls) == (writes, calls)
    world.assert_they_agree()
    await world.kill()


async def test_an_answer_of_the_tracker_that_is_lost_is_read_again() -> None:
    world = World()
    core = await world.start()
    for act in (take, take_again, free):
        world.api.lost_answers = 2
        await act(core)
        await world.quiet()
        world.assert_they_agree()
    assert world.api.data == {}
    assert world.vipus[0].calls == [("create", NAME), ("reset", NAME), ("remove", NAME)]
    await world.kill()


async def test_an_answer_of_v_ipu_that_is_lost_makes_no_twin() -> None:
    world = World(32, 32)
    core = await world.start()
    for lost, act in enumerate((take, take_again, free), 1):
        world.vipus[0].inner.keeper.set_faults(Faults(lose_answers=lost))
        await act(core)
        await world.quiet()
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
@settings(max_examples=120)
def test_whatever_comes_tracker_and_v_ipu_agree_in_the_end(ops: list[tuple[str, int, int]]) -> None:
    asyncio.run(_whatever(ops))


async def _whatever(ops: list[tuple[str, int, int]]) -> None:
    world = World(16, 8, knows_ipus=True)
    bad: dict[str, str] = {}
    wishes = [wish(f"uid-{i}", name=f"job{i}", size=4) for i in range(3)]
    wanted: dict[int, int] = {}
    await world.start(bad)
    for op, which, number in ops:
        asked = wishes[which % 3]
        name = called(asked)
        if op == "take":
            wanted[which] = max(wanted.get(which, 0), number)
            attempt = msgspec.structs.replace(asked, attempt=wanted[which])
            await _act(world, lambda core, attempt=attempt, name=name: core.taking.take(name, attempt))  # type: ignore[misc]
        elif op == "free":
            wanted.pop(which, None)
            await _act(world, lambda core, asked=asked, name=name: core.taking.free(name, asked.job))  # type: ignore[misc]
        elif op == "kill":
            world.gate.shut_at = world.gate.passed + which
        elif op == "lose":
            if which:
                world.api.lost_answers = number
            else:
                world.vipus[0].inner.keeper.set_faults(Faults(lose_answers=number))
        elif op == "quarantine":
            bad = quarantined(Ipu(f"10.1.1.{1 + which // 4}", which % 4)) if which < 6 else {}
            world.core.quarantine(bad)
        elif op == "vanish":
            for vipu in world.vipus:
                if name in vipu.held and world.core.store.entry(name) is not None:
                    vipu.inner.keeper.vanish(name)
        elif op == "map-gone" and not world.gate.is_shut.is_set():
            world.api.put(None)
            await world.seen()
        elif op in ("key-gone", "garbage") and name in world.api.data and not world.gate.is_shut.is_set():
            data = dict(world.api.data)
            del data[name]
            world.api.put(data | ({name: "{garbage"} if op == "garbage" else {}))
            await world.seen()
        if world.gate.is_shut.is_set():
            await _revive(world, bad)
    await _quiet_or_dead(world)
    await _revive(world, bad)
    await world.quiet()
    for index, last in wanted.items():
        asked = msgspec.structs.replace(wishes[index], attempt=last)
        answer = await world.core.taking.take(called(asked), asked)
        assert isinstance(answer, PartitionEntry), answer
        assert (answer.state, answer.job) == ("active", asked.job)
    for asked in [each for index, each in enumerate(wishes) if index not in wanted]:
        assert await world.core.taking.free(called(asked), asked.job) is None
    await world.core.counting.stats()
    await world.quiet()
    world.assert_they_agree()
    jobs = [name for name in world.core.store.entries if not name.startswith("p-muster-parked-")]
    assert sorted(jobs) == sorted(called(wishes[index]) for index in wanted)
    await world.kill()


async def _revive(world: World, bad: dict[str, str]) -> None:
    await world.kill()
    world.gate.open()
    await world.start(bad)

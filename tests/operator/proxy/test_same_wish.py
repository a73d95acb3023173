"""One wish that comes twice at once: whoever asks gives up sooner than V-IPU answers, and asks again."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.operator.proxy.world import World, called, wish

from muster_operator.job.partition_api import PartitionEntry

ASKED = wish()


class _Held:
    """The first call waits, before it asks or with its answer, until it is let go."""

    def __init__(self, ask: Callable[[Any], Coroutine[Any, Any, Any]], *, with_answer: bool) -> None:
        self._ask = ask
        self._with_answer = with_answer
        self._is_first = True
        self.is_held = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, about: Any) -> Any:
        if not self._is_first:
            return await self._ask(about)
        self._is_first = False
        answer = await self._ask(about) if self._with_answer else None
        self.is_held.set()
        await self.let_go.wait()
        return answer if self._with_answer else await self._ask(about)


@pytest.mark.parametrize(("call", "with_answer"), [("partition", False), ("free_blocks", True)])
async def test_both_get_the_one_partition_and_no_room_is_kept_for_another(call: str, with_answer: bool) -> None:
    world = World(8)
    core = await world.start()
    vipu = world.vipus[0]
    held = _Held(getattr(vipu, call), with_answer=with_answer)
    setattr(vipu, call, held)
    first = asyncio.create_task(core.taking.take(called(ASKED), ASKED))
    await held.is_held.wait()
    second = await core.taking.take(called(ASKED), ASKED)
    assert isinstance(second, PartitionEntry)
    await world.quiet()
    held.let_go.set()
    assert await first == second
    other = wish("uid-2", name="other")
    taken = await core.taking.take(called(other), other)
    assert isinstance(taken, PartitionEntry), "the other half is free"
    await world.quiet()
    world.assert_they_agree()
    await world.kill()

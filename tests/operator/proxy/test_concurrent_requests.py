"""One request that comes twice at once: whoever asks gives up sooner than V-IPU answers, and asks again."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.operator.proxy.world import World, build_request, partition_name

from muster_operator.job.partition_api import PartitionEntry

ASKED = build_request()


class _HeldCall:
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


@pytest.mark.parametrize(("call", "with_answer"), [("find_partition", False), ("count_free_blocks", True)])
async def test_both_get_the_one_partition_and_no_room_is_kept_for_another(call: str, with_answer: bool) -> None:
    world = World(8)
    proxy = await world.start()
    vipu = world.vipus[0]
    held = _HeldCall(getattr(vipu, call), with_answer=with_answer)
    setattr(vipu, call, held)
    first = asyncio.create_task(proxy.intents.request(partition_name(ASKED), ASKED))
    await held.is_held.wait()
    second = await proxy.intents.request(partition_name(ASKED), ASKED)
    assert isinstance(second, PartitionEntry)
    await world.wait_idle()
    held.let_go.set()
    assert await first == second
    other = build_request("uid-2", name="other")
    taken = await proxy.intents.request(partition_name(other), other)
    assert isinstance(taken, PartitionEntry), "the other half is free"
    await world.wait_idle()
    world.assert_they_agree()
    await world.kill()

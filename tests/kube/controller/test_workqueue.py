import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_kube.api.errors import TooManyRequests
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.workqueue import ShutDown, WorkQueue, run_workers

keys = st.integers(0, 4)
actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "add first", "add_after", "rate_limited"]), keys, st.floats(0, 3), st.floats(0, 2)
    ),
    max_size=40,
)


@settings(deadline=None)
@given(actions, st.integers(1, 4), st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=20))
def test_no_key_runs_twice_at_once_and_none_is_lost(wire, actions, workers, handling):
    running: Counter[int] = Counter()
    started: dict[int, float] = {}
    due: dict[int, float] = {}
    runs = iter(range(10**6))

    async def main():
        loop = asyncio.get_running_loop()
        queue: WorkQueue[int] = WorkQueue(backoff=Backoff(0.1, 1.0))

        async def handle(key):
            assert running[key] == 0
            running[key] += 1
            started[key] = loop.time()
            seconds, fails = handling[next(runs) % len(handling)]
            await asyncio.sleep(seconds)
            running[key] -= 1
            if fails and next(runs) < 200:
                due[key] = loop.time()
                raise TooManyRequests(429, "", "", "", 0.5)

        pool = asyncio.create_task(run_workers(queue, handle, workers=workers))
        for action, key, delay, pause in actions:
            if action in ("add", "add first"):
                queue.add(key, first=action == "add first")
                due[key] = loop.time()
            elif action == "add_after":
                queue.add_after(key, delay)
                due[key] = max(due.get(key, 0.0), loop.time())
            else:
                due[key] = max(due.get(key, 0.0), loop.time() + 0 * queue.add_rate_limited(key))
            await asyncio.sleep(pause)
        await asyncio.sleep(3600)
        assert (len(queue), queue.in_hand, queue.delayed) == (0, 0, 0)
        for key, at in due.items():
            assert started.get(key, -1.0) >= at, f"key {key} was added at {at} and not run since"
        queue.shut_down()
        await pool

    wire.run_virtually(main())


def test_a_key_added_while_in_line_is_handed_out_once(wire):
    async def main():
        queue = WorkQueue()
        for _ in range(3):
            queue.add("a")
        assert len(queue) == 1
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    wire.run_virtually(main())


def test_a_key_added_while_in_hand_waits_until_it_is_done(wire):
    async def main():
        queue = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get() == "a"

    wire.run_virtually(main())


def test_a_key_that_goes_first_stands_before_the_others_also_where_it_was_in_line_or_in_hand(wire):
    async def main():
        queue = WorkQueue()
        for key in "abcd":
            queue.add(key)
        queue.add("c", first=True)
        queue.add("x", first=True)
        queue.add("x")
        queue.add("c", first=True)
        assert len(queue) == 5
        assert [await queue.get() for _ in range(3)] == ["c", "x", "a"]
        queue.add("a")
        queue.add("a", first=True)
        queue.done("a")
        assert [await queue.get() for _ in range(3)] == ["a", "b", "d"]
        # the next time it stands where everybody does
        queue.done("c")
        queue.add("e")
        queue.add("c")
        assert [await queue.get() for _ in range(2)] == ["e", "c"]
        assert len(queue) == 0

    wire.run_virtually(main())


def test_of_two_delays_the_earlier_counts(wire):
    async def main():
        loop = asyncio.get_running_loop()
        for first, second in ((5, 9), (9, 5)):
            queue = WorkQueue()
            start = loop.time()
            queue.add_after("a", first)
            queue.add_after("a", second)
            await queue.get()
            assert loop.time() - start == pytest.approx(5)
            assert queue.delayed == 0

    wire.run_virtually(main())


def test_failures_in_a_row_wait_longer_until_one_goes_well(wire):
    async def main():
        loop = asyncio.get_running_loop()
        queue = WorkQueue(backoff=Backoff(1.0, 8.0))
        at = []

        async def handle(key):
            at.append(loop.time())
            if len(at) != 6:
                raise ValueError

        pool = asyncio.create_task(run_workers(queue, handle, workers=2))
        queue.add("a")
        await asyncio.sleep(100)
        queue.add("a")
        await asyncio.sleep(1.5)  # the longest first pause, and the shortest first two together
        pool.cancel()
        gaps = [b - a for a, b in pairwise(at)]
        for gap, middle in zip(gaps[:5], (1, 2, 4, 8, 8), strict=True):
            assert 0.5 * middle <= gap <= 1.5 * middle
        assert len(at) == 8
        assert 0.5 <= gaps[6] <= 1.5

    wire.run_virtually(main())


def test_a_429_waits_as_long_as_the_server_says(wire):
    async def main():
        loop = asyncio.get_running_loop()
        queue = WorkQueue()
        at = []

        async def handle(key):
            at.append(loop.time())
            if len(at) == 1:
                raise TooManyRequests(429, "", "", "", 30.0)

        pool = asyncio.create_task(run_workers(queue, handle, workers=1))
        queue.add("a")
        await asyncio.sleep(60)
        pool.cancel()
        assert at[1] - at[0] == pytest.approx(30)

    wire.run_virtually(main())


def test_a_shut_down_queue_hands_out_what_is_in_line_and_then_ends(wire):
    async def main():
        queue = WorkQueue()
        queue.add("a")
        queue.add_after("later", 1)
        queue.shut_down()
        queue.add("b")
        assert await queue.get() == "a"
        with pytest.raises(ShutDown):
            await queue.get()

    wire.run_virtually(main())


def test_all_waiting_workers_end_at_a_shut_down(wire):
    async def main():
        queue = WorkQueue()
        pool = asyncio.create_task(run_workers(queue, asyncio.sleep, workers=5))
        await asyncio.sleep(1)
        queue.shut_down()
        async with asyncio.timeout(1):
            await pool

    wire.run_virtually(main())


def test_a_getter_cancelled_as_it_is_woken_passes_the_key_on(wire):
    async def main():
        queue = WorkQueue()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        queue.add("a")
        first.cancel()
        async with asyncio.timeout(1):
            assert await second == "a"

    wire.run_virtually(main())


def test_a_getter_cancelled_before_is_passed_over(wire):
    async def main():
        queue = WorkQueue()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        queue.add("a")
        async with asyncio.timeout(1):
            assert await second == "a"
        assert first.cancelled()

    wire.run_virtually(main())

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wording.facts import missing_facts

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg.sources.kmsg import KmsgPlace, KmsgSource
from muster_checks.dmesg.sources.position import load_position
from muster_checks.dmesg.sources.source import ReopenDelay
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_checks.dmesg.stream import GAP_QUIET_S, GAP_REASON, GATHER_BYTES, GATHER_S, KernelLogStream

FIXED = KernelClocks(realtime=lambda: 2000.0, monotonic=lambda: 1000.0)


def stream_on(ring: Any, judge: Any, saved: bytes | None = None, clocks: KernelClocks = FIXED) -> Any:
    """As stream_factory.py puts it together, with a judge of our own."""
    position = load_position(saved)
    timeline = Timeline(clocks, position.booted if position else None)
    place = KmsgPlace(seq=-1)
    if position is not None:
        place = msgspec.json.decode(position.place, type=KmsgPlace)
        judge.heard = msgspec.json.decode(position.judge)
    source = KmsgSource(Path("/dev/kmsg"), timeline, judge.interesting, place, ring.open)
    return KernelLogStream(
        source,
        judge,
        timeline,
        boot_id="b",
        source_name="kmsg:/dev/kmsg",
        gap_at=position.gap_at if position else None,
    )


def heard_at(position: bytes) -> list[str]:
    saved = load_position(position)
    assert saved is not None
    return list(msgspec.json.decode(saved.judge))


async def test_lines_arrive_while_waiting_for_them(ring: Any, echo: Any) -> None:
    stream = stream_on(ring, echo())
    events = stream.events()
    ring.write(b"one")
    assert [sign.message for sign in await anext(events)] == ["one"]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert stream.caught_up
    ring.write(b"two")
    assert [sign.message for sign in await asyncio.wait_for(waiting, 60)] == ["two"]
    await events.aclose()


async def test_the_position_covers_only_what_the_consumer_has_returned_from(ring: Any, echo: Any) -> None:
    stream = stream_on(ring, echo())
    assert heard_at(stream.position()) == []
    ring.write(b"one")
    events = stream.events()
    await anext(events)
    in_hand = stream.position()
    assert heard_at(in_hand) == []
    assert not stream.caught_up
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert heard_at(stream.position()) == ["one"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = stream_on(ring, echo(), in_hand).events()
    assert [sign.message for sign in await anext(again)] == ["one"]
    await again.aclose()


async def test_lines_without_a_sign_move_the_position_silently(ring: Any, echo: Any, read_out: Any) -> None:
    stream = stream_on(ring, echo())
    ring.write(b"dull")
    ring.write(b"dull too")
    assert await read_out(stream) == []
    assert b'seq\\":1' in stream.position()


async def test_drain_waits_for_a_batch_that_the_consumer_still_has_in_hand(ring: Any, echo: Any) -> None:
    stream = stream_on(ring, echo())
    ring.write(b"one")
    events = stream.events()
    await anext(events)
    drained = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(0.01)
    assert not drained.done()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.wait_for(drained, 60)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_drain_waits_for_lines_that_came_while_a_batch_was_in_hand(ring: Any, echo: Any) -> None:
    stream = stream_on(ring, echo())
    ring.write(b"one")
    events = stream.events()
    await anext(events)
    ring.write(b"two")
    drained = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(0)
    assert [sign.message for sign in await anext(events)] == ["two"]
    await asyncio.sleep(0)
    assert not drained.done()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.wait_for(drained, 60)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_drain_returns_when_the_source_cannot_be_read(ring: Any, echo: Any, read_out: Any) -> None:
    ring.broken = FileNotFoundError(errno.ENOENT, "No such file or directory")
    stream = stream_on(ring, echo())
    assert await read_out(stream) == []
    assert missing_facts(stream.health(), os.strerror(errno.ENOENT)) == []
    assert "/dev/kmsg" in stream.health()
    assert not stream.caught_up


async def test_drain_of_a_closed_stream_is_an_error(ring: Any, echo: Any, read_out: Any) -> None:
    stream = stream_on(ring, echo())
    await read_out(stream)
    with pytest.raises(RuntimeError, match="ended"):
        await stream.drain()


async def test_closing_the_stream_frees_who_waits_for_its_end(ring: Any, echo: Any) -> None:
    stream = stream_on(ring, echo())
    ring.write(b"one")
    events = stream.events()
    await anext(events)
    drained = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(0)
    await events.aclose()
    with pytest.raises(RuntimeError, match="ended"):
        await drained


async def test_a_device_that_comes_back_is_read_on(ring: Any, echo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReopenDelay, "FIRST_S", 0.01)
    ring.broken = FileNotFoundError(errno.ENOENT, "No such file or directory")
    stream = stream_on(ring, echo())
    events = stream.events()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert stream.health()
    ring.broken = None
    ring.write(b"one")
    assert [sign.message for sign in await asyncio.wait_for(waiting, 60)] == ["one"]
    assert stream.health() == ""
    await events.aclose()


async def test_a_line_that_trips_the_judge_stops_nothing(
    ring: Any, echo: Any, read_out: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_on(ring, echo())
    for text in (b"one", b"trip", b"two"):
        ring.write(text)
    assert [sign.message for sign in await read_out(stream)] == ["one", "two"]
    assert stream.counts()["unjudged"] == 1
    assert "trip" in caplog.text


async def test_lost_records_are_a_warning_that_goes_after_an_hour(
    ring: Any, echo: Any, clock: Any, read_out: Any
) -> None:
    ring.capacity = 2
    for _ in range(10):
        ring.write(b"dull")
    stream = stream_on(ring, echo(), clocks=clock.clocks())
    (sign,) = await read_out(stream)
    assert isinstance(sign, Sign)
    assert (sign.component, sign.reason, sign.verdict, sign.count) == ("host", GAP_REASON, Verdict.WARN, 8)
    clock.uptime += GAP_QUIET_S - 1
    stream = stream_on(ring, echo(), stream.position(), clock.clocks())
    assert await read_out(stream) == []
    clock.uptime += 1
    stream = stream_on(ring, echo(), stream.position(), clock.clocks())
    (clear,) = await read_out(stream)
    assert isinstance(clear, AllClear)
    assert (clear.component, clear.reasons, clear.how) == ("host", (GAP_REASON,), "quiet")
    stream = stream_on(ring, echo(), stream.position(), clock.clocks())
    assert await read_out(stream) == []


async def test_the_judge_is_asked_when_it_wants_to_be(ring: Any, echo: Any, clock: Any) -> None:
    judge = echo()
    stream = stream_on(ring, judge, clocks=clock.clocks())
    judge.due = Timeline(clock.clocks()).now() + 0.05
    events = stream.events()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert judge.ticks == []
    clock.uptime += 0.05
    assert isinstance((await asyncio.wait_for(waiting, 60))[0], AllClear)
    assert judge.ticks == [Timeline(clock.clocks()).now()]
    await events.aclose()


async def test_a_burst_of_ten_thousand_is_read_to_the_last(ring: Any, echo: Any, read_out: Any) -> None:
    for number in range(10_000):
        ring.write(b"%d" % number)
    signs = await read_out(stream_on(ring, echo()))
    assert [sign.message for sign in signs] == [str(number) for number in range(10_000)]


async def test_a_backlog_leaves_the_loop_to_others(ring: Any, echo: Any, read_out: Any) -> None:
    for _ in range(10_000):
        ring.write(b"dull")
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(another())
    await read_out(stream_on(ring, echo()))
    task.cancel()
    assert turns >= 10_000 // 512


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 700)),
        st.just(("take", 0)),
        st.just(("save", 0)),
        st.just(("save in hand", 0)),
        st.just(("crash", 0)),
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_whenever_it_crashes_judge_and_place_agree(steps: list[tuple[str, int]], new_ring: Any, echo: Any) -> None:
    """The judge's memory after a restart holds each line once, whenever the position was saved."""

    async def life() -> None:
        ring = new_ring()
        saved: bytes | None = None
        stream = stream_on(ring, echo())
        events = stream.events()
        in_hand = False
        for step, number in [*steps, ("crash", 0)]:
            if step == "write":
                for _ in range(number):
                    ring.write(b"%d" % len(ring.records))
            elif step == "take" and stream.position() and len(heard_at(stream.position())) < len(ring.records):
                # a batch is waiting, unless the one in hand is the last: then this would wait for ever
                try:
                    await asyncio.wait_for(anext(events), 0.05)
                    in_hand = True
                except TimeoutError:
                    await events.aclose()
                    saved, in_hand = stream.position(), False
                    stream = stream_on(ring, echo(), saved)
                    events = stream.events()
            elif step == "save" or (step == "save in hand" and in_hand):
                saved = stream.position()
            elif step == "crash":
                await events.aclose()
                stream = stream_on(ring, echo(), saved)
                events = stream.events()
                in_hand = False
        reader = asyncio.ensure_future(_exhaust(events))
        await asyncio.wait_for(stream.drain(), 60)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert heard_at(stream.position()) == [str(number) for number in range(len(ring.records))]

    asyncio.run(life())


async def _exhaust(events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize(
    ("lines_per_s", "text", "seldom"), [(150, b"dull", False), (1600, b"dull", True), (1600, b"x" * 1000, True)]
)
async def test_only_in_a_flood_is_the_log_read_seldom(
    lines_per_s: int, text: bytes, seldom: bool, ring: Any, echo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is the loop's own, moved by hand: 3 seconds in which each line wakes the reader."""
    loop = asyncio.get_running_loop()
    now = 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    stream = stream_on(ring, echo())
    reader = asyncio.ensure_future(_exhaust(stream.events()))
    turns = most = 0
    for _ in range(3 * lines_per_s):
        ring.write(text)
        seen = stream.counts()["lines"]
        for _ in range(6):  # the loop looks at its files, its timers and what they woke
            await asyncio.sleep(0)
        turns += stream.counts()["lines"] > seen
        most = max(most, (stream.counts()["lines"] - seen) * len(ring.records[-1]))
        now += 1 / lines_per_s
    now += 1.0
    await asyncio.wait_for(stream.drain(), 60)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert stream.counts()["lines"] == 3 * lines_per_s
    if seldom:
        assert turns < 200 + max(3 / GATHER_S, lines_per_s * 3 * len(text) / GATHER_BYTES) + 10
        assert most < 1.2 * GATHER_BYTES, "half of the smallest log buffer"
    else:
        assert turns == 3 * lines_per_s

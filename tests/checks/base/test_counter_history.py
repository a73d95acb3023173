"""Counters are judged by their rise; whatever they do, and however many readings are thinned out, none is lost."""

from collections.abc import Mapping
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.counter_history import (
    KEPT_S,
    MEMORY_KEPT_S,
    MEMORY_LIMIT_BYTES,
    POINTS_LIMIT,
    SERIES_LIMIT,
    CounterSeries,
    History,
    Rise,
    read_series,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _watched(values: list[float], every_s: float = 60.0) -> CounterSeries:
    clock = Clock()
    history = History(clock)
    for value in values:
        clock.now += every_s
        history.note("check", {"counter": value})
    return history.of("check")["counter"]


def _true_rise(values: list[float]) -> float:
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def test_a_counter_read_once_has_not_risen() -> None:
    assert _watched([2_932_108.0]).rise(600) == Rise(0.0, 0.0)


def test_a_series_without_readings_has_not_risen() -> None:
    empty = CounterSeries((), ())
    assert empty.rise(600) == Rise(0.0, 0.0)
    assert empty.latest is None


def test_the_rise_is_what_came_between_the_readings() -> None:
    series = _watched([100.0, 103.0, 103.0, 110.0])
    assert series.rise(3600) == Rise(10.0, 180.0)
    assert series.latest == 110.0


def test_a_counter_that_began_anew_has_risen_by_what_it_shows() -> None:
    assert _watched([100.0, 105.0, 2.0, 3.0]).rise(3600).amount == 8.0


def test_what_rose_before_the_window_does_not_count() -> None:
    assert _watched([0.0, 500.0, 500.0, 501.0]).rise(60) == Rise(1.0, 60.0)


def test_a_window_shorter_than_the_pace_of_readings_still_sees_the_last_rise() -> None:
    assert _watched([0.0, 0.0, 60.0]).rise(30) == Rise(30.0, 30.0)


def test_a_rise_found_after_a_long_gap_counts_by_its_share_in_the_window() -> None:
    series = _watched([0.0, 1000.0], every_s=1000.0)
    assert series.rise(100) == Rise(100.0, 100.0)


def test_the_mean_rise_is_for_as_long_as_was_watched() -> None:
    assert _watched([0.0, 30.0]).rise(3600).per(3600) == pytest.approx(1800.0)
    assert Rise(5.0, 0.0).per(60) == 0.0


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60), st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_a_rise_is_never_negative_and_never_more_than_all_that_came(values: list[int], window_s: float) -> None:
    floats = [float(value) for value in values]
    rise = _watched(floats).rise(window_s)
    assert 0.0 <= rise.amount <= _true_rise(floats) * (1 + 1e-9) + 1e-9
    assert 0.0 <= rise.over_s <= max(window_s, 0.0) + 1e-9


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40), st.floats(0, 3000), st.floats(0, 3000))
@settings(max_examples=100, deadline=None)
def test_a_longer_window_never_shows_less(values: list[int], one: float, other: float) -> None:
    series = _watched([float(value) for value in values])
    short, long = sorted((one, other))
    assert series.rise(short).amount <= series.rise(long).amount + 1e-9


@given(st.integers(), st.sampled_from([1.0, 60.0]))
@settings(max_examples=15, deadline=None)
def test_thinning_loses_nothing_of_the_rise(seed: int, every_s: float) -> None:
    random = Random(seed)
    floats = [float(random.randrange(50)) for _ in range(POINTS_LIMIT * 4)]
    series = _watched(floats, every_s)
    assert len(series.points) <= POINTS_LIMIT
    assert series.rise(KEPT_S).amount == pytest.approx(_true_rise(floats))
    assert series.rise(KEPT_S).over_s == (len(floats) - 1) * every_s


def test_the_newest_readings_are_not_thinned() -> None:
    values = [float(7 * (number % 2)) for number in range(POINTS_LIMIT * 5)]
    series = _watched(values)
    assert [value for _, value in series.points[-200:]] == values[-200:]


def test_a_counter_that_stands_still_takes_two_readings_of_room() -> None:
    series = _watched([5.0] * 10_000)
    assert len(series.points) == 2
    assert series.rise(KEPT_S) == Rise(0.0, 9_999 * 60.0)


def test_readings_older_than_a_week_are_forgotten() -> None:
    clock = Clock()
    history = History(clock)
    history.note("check", {"counter": 1.0})
    clock.now += 10.0
    history.note("check", {"counter": 2.0})
    clock.now += KEPT_S + 5.0
    history.note("check", {"counter": 4.0})
    assert history.of("check")["counter"].rise(10 * KEPT_S) == Rise(0.0, 0.0)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_spoils_nothing(odd: float) -> None:
    assert _watched([1.0, odd, 4.0]).rise(600).amount == 3.0


def test_checks_do_not_see_each_other_s_counters() -> None:
    history = History(Clock())
    history.note("ib", {"a": 1.0})
    history.note("nic", {"b": 1.0})
    assert set(history.of("ib")) == {"a"}
    assert history.of("dcgm") == {}
    assert (history.noted("nic"), history.noted("dcgm")) == (True, False)


def test_counters_that_were_gone_for_a_day_make_room_and_others_stay() -> None:
    clock = Clock()
    history = History(clock)
    history.note("old", {f"c{number}": 0.0 for number in range(SERIES_LIMIT)})
    history.note("old", {"one too many": 0.0})
    assert len(history.of("old")) == SERIES_LIMIT
    assert "one too many" not in history.of("old")
    clock.now += 90_000.0
    history.note("old", {"c0": 1.0})
    history.note("new", {"counter": 0.0})
    assert set(history.of("old")) == {"c0"}
    assert set(history.of("new")) == {"counter"}


def test_the_clock_of_a_history_is_steady_and_counts_while_suspended() -> None:
    history = History()
    assert 0 < history.clock() <= history.clock()


async def test_the_first_reading_is_taken_twice_and_later_ones_once() -> None:
    clock = Clock()
    history = History(clock)
    values = iter([10.0, 12.0, 20.0])
    taken = 0

    async def read() -> Mapping[str, float]:
        nonlocal taken
        taken += 1
        clock.now += 1.0
        return {"counter": next(values)}

    assert (await read_series(history, "check", read, 0.0))["counter"].rise(60) == Rise(2.0, 1.0)
    assert taken == 2
    assert (await read_series(history, "check", read, 0.0))["counter"].rise(60) == Rise(10.0, 2.0)
    assert taken == 3


# --- over a restart of the agent

BOOT = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def _restarted(history: History, clock: Clock) -> History:
    fresh = History(clock)
    assert fresh.restore(history.memory(BOOT, newest=True), BOOT)
    return fresh


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=60), st.floats(0, 5000))
@settings(max_examples=100, deadline=None)
def test_a_restart_at_any_time_changes_no_rise(steps: list[tuple[int, bool]], window_s: float) -> None:
    clock = Clock()
    through, restarted = History(clock), History(clock)
    for value, restart in steps:
        clock.now += 60.0
        for history in (through, restarted):
            history.note("check", {"counter": float(value)})
        if restart:
            restarted = _restarted(restarted, clock)
    assert restarted.of("check") == through.of("check")
    assert restarted.of("check")["counter"].rise(window_s) == through.of("check")["counter"].rise(window_s)
    assert restarted.since_noted_s("check") == through.since_noted_s("check") == 0.0


async def test_the_first_reading_after_a_restart_is_taken_once() -> None:
    clock = Clock()
    history = History(clock)
    history.note("check", {"counter": 10.0})
    clock.now += 60.0
    fresh = _restarted(history, clock)

    async def read() -> Mapping[str, float]:
        return {"counter": 4.0}

    assert (await read_series(fresh, "check", read, 1e9))["counter"].rise(3600) == Rise(4.0, 60.0), "it began anew"


def test_what_another_boot_s_clock_wrote_is_dropped() -> None:
    clock = Clock()
    history = History(clock)
    history.note("check", {"counter": 10.0})
    memory = history.memory(BOOT)
    fresh = History(clock)
    assert not fresh.restore(memory, "another")
    assert not fresh.restore(memory, ""), "where boots cannot be told apart, any may be another"
    assert not fresh.restore(history.memory("", newest=True), "")
    clock.now -= 1.0  # this boot's clock has not come so far yet
    assert not fresh.restore(memory, BOOT)
    assert fresh.of("check") == {}
    assert not fresh.noted("check")


@pytest.mark.parametrize("raw", [b"", b"x", b"\xff" * 99, msgspec.msgpack.encode([BOOT, {}, [["a"]]])])
def test_a_memory_that_cannot_be_read_is_none(raw: bytes) -> None:
    history = History(Clock())
    assert not history.restore(raw, BOOT)
    assert not history.noted("check")


def test_any_half_of_a_memory_is_none() -> None:
    history = History(Clock())
    history.note("check", {"counter": 10.0})
    memory = history.memory(BOOT)
    assert all(not History(history.clock).restore(memory[:cut], BOOT) for cut in range(len(memory)))


def test_a_memory_is_made_anew_every_few_minutes_and_at_the_end() -> None:
    clock = Clock()
    history = History(clock)
    history.note("check", {"counter": 10.0})
    first = history.memory(BOOT)
    clock.now += MEMORY_KEPT_S - 1
    history.note("check", {"counter": 11.0})
    assert history.memory(BOOT) == first
    assert history.memory(BOOT, newest=True) != first
    clock.now += MEMORY_KEPT_S
    history.note("check", {"counter": 12.0})
    assert _latest(history.memory(BOOT), clock) == 12.0


def _latest(memory: bytes, clock: Clock) -> float | None:
    fresh = History(clock)
    assert fresh.restore(memory, BOOT)
    return fresh.of("check")["counter"].latest


@pytest.mark.parametrize(("counters", "readings_each"), [(400, 600), (6000, 20), (SERIES_LIMIT, 3)])
def test_a_memory_is_bounded_and_old_readings_are_what_it_lacks(counters: int, readings_each: int) -> None:
    clock = Clock()
    history = History(clock)
    for number in range(readings_each):
        clock.now += 60.0
        history.note("check", {f"eth{each}/rx_errors": float(number * each) for each in range(counters)})
    clock.now += 60.0
    history.note("check", {"newest": 1.0, "eth7/rx_errors": readings_each * 7.0})
    memory = history.memory(BOOT)
    assert len(memory) <= MEMORY_LIMIT_BYTES
    fresh = History(clock)
    assert fresh.restore(memory, BOOT)
    kept, whole = fresh.of("check"), history.of("check")
    assert "eth7/rx_errors" in kept, "what was read last stays"
    assert len(kept) >= min(counters, 15_000)
    for name, series in kept.items():
        assert series.rise(KEPT_S) == whole[name].rise(KEPT_S)
        assert series.points[-1] == whole[name].points[-1]
        assert len(series.points) >= min(len(whole[name].points), 2)


def test_the_newest_readings_are_carried_over_whole() -> None:
    clock = Clock()
    history = History(clock)
    random = Random(7)
    for _ in range(300):
        clock.now += 60.0
        history.note("check", {f"c{each}": float(random.randrange(1000)) for each in range(400)})
    kept, whole = _restarted(history, clock).of("check")["c1"], history.of("check")["c1"]
    assert len(kept.points) < len(whole.points)
    assert kept.points[-32:] == whole.points[-32:]
    assert kept.rise(30 * 60.0) == whole.rise(30 * 60.0)
    assert kept.points[0] == whole.points[0]


def test_a_counter_whose_name_is_no_text_spoils_no_memory() -> None:
    clock = Clock()
    history = History(clock)
    history.note("check", {"counter": 1.0, "dimm\udcff": 2.0})
    assert set(_restarted(history, clock).of("check")) == {"counter"}

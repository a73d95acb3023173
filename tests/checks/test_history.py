"""Counters are judged by their rise; whatever they do, and however many readings are thinned out, none is lost."""

from collections.abc import Mapping
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.history import KEPT_S, POINTS_LIMIT, SERIES_LIMIT, History, Rise, Series, readings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _watched(values: list[float], every_s: float = 60.0) -> Series:
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
    empty = Series((), ())
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

    assert (await readings(history, "check", read, 0.0))["counter"].rise(60) == Rise(2.0, 1.0)
    assert taken == 2
    assert (await readings(history, "check", read, 0.0))["counter"].rise(60) == Rise(10.0, 2.0)
    assert taken == 3

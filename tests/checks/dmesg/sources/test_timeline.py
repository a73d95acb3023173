from typing import Any

import pytest

from muster_checks.dmesg.sources.timeline import SAME_CLOCK_S, Timeline


def test_a_clock_that_is_set_moves_no_line(clock: Any) -> None:
    timeline = Timeline(clock.clocks())
    before = timeline.at(500.0), timeline.now()
    clock.step = -86_400.0
    assert (timeline.at(500.0), timeline.now()) == before
    clock.uptime += 10
    assert timeline.now() == before[1] + 10


def test_no_line_is_of_the_future(clock: Any) -> None:
    timeline = Timeline(clock.clocks())
    assert timeline.at(clock.uptime + 3600) == timeline.now()


@pytest.mark.parametrize(
    ("step", "kept"), [(SAME_CLOCK_S - 1, True), (1 - SAME_CLOCK_S, True), (SAME_CLOCK_S + 1, False)]
)
def test_a_record_keeps_its_time_over_a_restart_unless_the_clock_was_corrected(
    step: float, kept: bool, clock: Any
) -> None:
    first = Timeline(clock.clocks())
    clock.step = step
    again = Timeline(clock.clocks(), first.booted)
    assert again.at(500.0) == first.at(500.0) + (0 if kept else step)

"""Times written by a Go layout, as logs in the field have them."""

import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.plugins.go_time import compile_layout

NOW = datetime(2026, 3, 5, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"], autouse=True)
def _zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type] # year, month, day and so on


def local(*parts: int) -> float:
    return datetime(*parts).timestamp()  # type: ignore[misc,arg-type] # noqa: DTZ001 - local time is what is tested


@pytest.mark.parametrize(
    ("layout", "text", "moment"),
    [
        ("2006-01-02T15:04:05.999999999-07:00", "2026-03-04T05:06:07.25+01:00", (utc, 2026, 3, 4, 4, 6, 7, 250_000)),
        ("2006-01-02T15:04:05.999999999-07:00", "2026-03-04T05:06:07-05:30", (utc, 2026, 3, 4, 10, 36, 7)),
        ("2006-01-02T15:04:05Z07:00", "2026-03-04T05:06:07Z", (utc, 2026, 3, 4, 5, 6, 7)),
        ("2006-01-02T15:04:05Z07:00", "2026-03-04T05:06:07.5+02:00", (utc, 2026, 3, 4, 3, 6, 7, 500_000)),
        ("2006-01-02T15:04:05.000000Z0700", "2026-03-04T05:06:07,123456+0000", (utc, 2026, 3, 4, 5, 6, 7, 123_456)),
        # as Go has it, a bare Z is a letter and no zone
        ("2006-01-02T15:04:05.999999999Z", "2026-03-04T05:06:07.5Z", (local, 2026, 3, 4, 5, 6, 7, 500_000)),
        ("Jan _2 15:04:05", "Mar  4 05:06:07", (local, 2026, 3, 4, 5, 6, 7)),
        ("Jan _2 15:04:05", "Mar 14 05:06:07", (local, 2025, 3, 14, 5, 6, 7)),
        ("Jan 2 15:04:05.000", "Dec 31 23:59:59.999", (local, 2025, 12, 31, 23, 59, 59, 999_000)),
        ("Jan _2 15:04:05", "Feb 29 00:00:00", (local, 2024, 2, 29)),
        ("Mon Jan _2 15:04:05 2006", "Wed Mar  4 05:06:07 2026", (local, 2026, 3, 4, 5, 6, 7)),
        ("Mon, 02 Jan 2006 15:04:05 MST", "Wed, 04 Mar 2026 05:06:07 CET", (local, 2026, 3, 4, 5, 6, 7)),
        ("Monday, 2 January 2006, 3:04PM", "Wednesday, 4 March 2026, 5:06PM", (local, 2026, 3, 4, 17, 6)),
        ("01/02/06 03:04:05 pm", "03/04/26 12:06:07 AM", (local, 2026, 3, 4, 0, 6, 7)),
        ("1/2/2006 15:04", "3/4/2026 15:04", (local, 2026, 3, 4, 15, 4)),
        ("2006-002 15:04", "2026-063 05:06", (local, 2026, 3, 4, 5, 6)),
        ("02.01.06 15h", "04.03.99 05h", (local, 1999, 3, 4, 5)),
        ("[20060102 15:04:05.000]", "[20260304 05:06:07.000]", (local, 2026, 3, 4, 5, 6, 7)),
    ],
)
def test_a_time_is_read_by_its_layout(layout, text, moment):
    clock, *parts = moment
    assert compile_layout(layout)(text, NOW) == pytest.approx(clock(*parts))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("Jan _2 15:04:05", "Foo  4 05:06:07"),
        ("Jan _2 15:04:05", "Feb 31 05:06:07"),
        ("Jan _2 15:04:05", "Mar  4 25:06:07"),
        ("Jan _2 15:04:05", "Mar  4 05:06:07 and more"),
        ("2006-01-02 15:04:05", "0000-01-02 15:04:05"),
        ("2006-01-02 15:04:05", "2026-13-02 15:04:05"),
        ("2006-01-02 15:04:05 -0700", "2026-01-02 15:04:05 +9900"),
        ("2006-01-02 15:04:05", ""),
    ],
)
def test_what_is_no_time_is_none(layout, text):
    assert compile_layout(layout)(text, NOW) is None


@pytest.mark.parametrize("layout", ["", "15:04:05", "2006-01-02", "no layout at all", "Jan 2006 15:04"])
def test_a_layout_that_says_too_little_is_refused(layout):
    with pytest.raises(ValueError, match=r"\bGo\b"):
        compile_layout(layout)


def test_a_part_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match=r"\btwice\b"):
        compile_layout("2006-01-02 15:04:05 15")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["2006", "01", "Jan", "02", "_2", "15", "04", "05", ".000", "Z07:00", " ", "(", "?", "\\"])
    ),
    st.text(max_size=30),
)
def test_any_layout_and_any_text_give_a_time_or_none(parts, text):
    try:
        read = compile_layout("".join(parts))
    except ValueError:
        return
    moment = read(text, NOW)
    assert moment is None or abs(moment) < 1e12


def test_the_zone_of_these_tests_is_not_this_machines():
    assert time.tzname[0] in ("UTC", "CET", "EST"), os.environ["TZ"]

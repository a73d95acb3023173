"""Times come from objects that people can edit: whatever is read can be written again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_kube.api.times import rfc3339, rfc3339_micro, rfc3339_whole, seconds


def test_milliseconds_come_back():
    assert rfc3339(1_700_000_000.1234) == "2023-11-14T22:13:20.123Z"
    assert seconds("2023-11-14T22:13:20.123Z") == 1_700_000_000.123
    assert rfc3339_whole(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert rfc3339(0) == ""


@pytest.mark.parametrize("text", ["", "soon", "99999", "nan", "2023-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59"])
def test_what_is_no_time_of_ours_is_never(text):
    assert seconds(text) == 0.0


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-23:59"])
def test_a_time_beyond_the_calendar_is_its_last_second(text):
    assert rfc3339_micro(seconds(text)) == "9999-12-31T23:59:59.000000Z"


@given(st.datetimes(), st.integers(-23, 23))
def test_whatever_is_read_can_be_written(moment, hours):
    offset = f"{'-' if hours < 0 else '+'}{abs(hours):02}:59"
    at = seconds(moment.isoformat() + offset)
    for write in (rfc3339, rfc3339_whole, rfc3339_micro):
        write(at)

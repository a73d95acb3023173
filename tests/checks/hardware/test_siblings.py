"""A device is compared with the median of equal devices if there are enough of them."""

import pytest

from muster_checks.hardware.siblings import share_of_others


def test_equal_devices_have_a_share_of_one() -> None:
    assert share_of_others({"a": 50.0, "b": 50.0, "c": 50.0}) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_the_slow_one_stands_out_and_does_not_drag_the_others_down() -> None:
    shares = share_of_others({"a": 52.0, "b": 50.0, "c": 26.0, "d": 54.0})
    assert shares["c"] == pytest.approx(0.5)
    assert min(shares[name] for name in "abd") > 0.9


@pytest.mark.parametrize("values", [{}, {"a": 1.0}, {"a": 1.0, "b": 2.0}])
def test_too_few_equals_say_nothing(values: dict[str, float]) -> None:
    assert share_of_others(values) == {}


def test_two_devices_can_be_compared_when_one_other_is_enough() -> None:
    assert share_of_others({"a": 1.0, "b": 2.0}, least=1) == {"a": 0.5, "b": 2.0}


def test_others_that_measure_nothing_are_no_measure() -> None:
    assert share_of_others({"a": 5.0, "b": 0.0, "c": 0.0}) == {"b": 0.0, "c": 0.0}

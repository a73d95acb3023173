"""Which occurrence is the later one, and which belongs to no count: at the limits."""

import pytest

from muster_kube.nodehealth import CLOSING_GAP, OCCURRENCE_GAP
from muster_tainter.faults.occurrence import LOST_CHECK, REST, closes, is_counted, is_jump, is_later_firing
from muster_tainter.policy.recovery import SOURCE_CHECKS

BY_TIME = sorted({*SOURCE_CHECKS, LOST_CHECK, REST})
SECOND = 1_800_000_000


@pytest.mark.parametrize("last", [0, 7, 5_000_000])
def test_a_jump_is_further_than_any_agent_counts_at_once(last: int) -> None:
    assert [is_jump("dmesg", last + above, last) for above in (1, OCCURRENCE_GAP, OCCURRENCE_GAP + 1)] == [
        False, False, True,
    ]  # fmt: skip
    assert not is_jump("dmesg", 1, last)


@pytest.mark.parametrize("check", BY_TIME)
def test_numbers_by_time_may_be_far_apart(check: str) -> None:
    assert (is_counted(check), is_counted("dmesg")) == (False, True)
    assert not is_jump(check, SECOND, 1)
    assert (is_later_firing(check, SECOND, 1), closes(check, 1, SECOND)) == (True, False)
    assert (is_later_firing(check, 1, SECOND), closes(check, SECOND, 1)) == (False, True)


def test_of_two_counted_numbers_the_higher_is_later_unless_it_is_of_another_count() -> None:
    higher = [(above, is_later_firing("dmesg", 10 + above, 10)) for above in (0, 1, CLOSING_GAP)]
    assert higher == [(0, False), (1, True), (CLOSING_GAP, True)]
    assert [closes("dmesg", 10, number) for number in (9, 10, 11)] == [True, True, False]

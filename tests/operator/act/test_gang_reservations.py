"""What is promised to gangs under way, as others see it."""

import pytest

from muster_operator.act.gang_reservations import GangReservations


@pytest.mark.parametrize(("size", "blocks"), [(2, 8), (4, 4), (8, 2), (16, 2)])
def test_promised_partitions_count_as_the_blocks_that_they_may_spoil(size: int, blocks: int) -> None:
    promises = GangReservations()
    with promises.made("u1", 2, 8):
        assert promises.to_others("u2", size) == {"u1": blocks}


def test_what_is_there_is_not_promised_any_more_nor_is_a_gang_in_its_own_way() -> None:
    promises = GangReservations()
    with promises.made("u1", 3, 4), promises.made("u2", 1, 4):
        promises.kept("u1")
        assert promises.to_others("u1", 4) == {"u2": 1}
        assert promises.to_others("u3", 4) == {"u1": 2, "u2": 1}
    promises.kept("u1")
    assert promises.to_others("u3", 4) == {}


def test_a_gang_that_is_not_taken_to_its_end_leaves_no_promise_behind() -> None:
    promises = GangReservations()
    with pytest.raises(ConnectionError), promises.made("u1", 3, 4):
        raise ConnectionError
    assert promises.to_others("u2", 4) == {}

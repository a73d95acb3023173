"""What is reserved for gangs under way, as others see it."""

import pytest

from muster_operator.act.gang_reservations import GangReservations


@pytest.mark.parametrize(("size", "blocks"), [(2, 8), (4, 4), (8, 2), (16, 2)])
def test_reserved_partitions_count_as_the_blocks_that_they_may_spoil(size: int, blocks: int) -> None:
    reservations = GangReservations()
    with reservations.hold("u1", 2, 8):
        assert reservations.of_others("u2", size) == {"u1": blocks}


def test_a_created_partition_is_no_longer_reserved_and_a_gang_does_not_block_itself() -> None:
    reservations = GangReservations()
    with reservations.hold("u1", 3, 4), reservations.hold("u2", 1, 4):
        reservations.note_taken("u1")
        assert reservations.of_others("u1", 4) == {"u2": 1}
        assert reservations.of_others("u3", 4) == {"u1": 2, "u2": 1}
    reservations.note_taken("u1")
    assert reservations.of_others("u3", 4) == {}


def test_a_gang_that_is_not_taken_to_its_end_leaves_no_reservation_behind() -> None:
    reservations = GangReservations()
    with pytest.raises(ConnectionError), reservations.hold("u1", 3, 4):
        raise ConnectionError
    assert reservations.of_others("u2", 4) == {}

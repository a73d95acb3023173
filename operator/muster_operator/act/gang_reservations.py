"""Room that gangs which are just being given their partitions will still need, and that is no other gang's meanwhile.

The question for room and the creations after it are not one step, and each may take V-IPU seconds. Without this two
gangs that begin at once would each get half, give it back, be woken by that together, and so on for ever. It is in
memory only: who leads is the only one that takes, and whoever follows begins with none under way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class _Reservation:
    """left: partitions of ``size`` IPUs that are still to be made."""

    left: int
    size: int


class GangReservations:
    def __init__(self) -> None:
        self._by_job: dict[str, _Reservation] = {}

    @contextmanager
    def hold(self, uid: str, number: int, size: int) -> Iterator[None]:
        """To that job, while it takes them."""
        self._by_job[uid] = _Reservation(number, size)
        try:
            yield
        finally:
            del self._by_job[uid]

    def note_taken(self, uid: str) -> None:
        """One more is there: V-IPU counts it now."""
        if (reservation := self._by_job.get(uid)) is not None:
            reservation.left -= 1

    def of_others(self, uid: str, size: int) -> dict[str, int]:
        """By job, how many aligned blocks of ``size`` IPUs the reservations of others may take at most."""
        return {
            each: reservation.left * max(1, reservation.size // size)
            for each, reservation in self._by_job.items()
            if each != uid
        }

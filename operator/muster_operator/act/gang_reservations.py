"""Partitions reserved for gangs that are being allocated, so that no other gang takes them.

The capacity query and the creations after it are separate calls, and each may take V-IPU seconds. Without reservations
two gangs that start at once would each get half, release it, wake each other and repeat forever. The reservations are
in memory only: only the leader allocates, and a new leader starts with none in progress.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class _Reservation:
    """left: partitions of ``size`` IPUs that are not created yet."""

    left: int
    size: int


class GangReservations:
    def __init__(self) -> None:
        self._by_job: dict[str, _Reservation] = {}

    @contextmanager
    def hold(self, uid: str, number: int, size: int) -> Iterator[None]:
        """Reserve the partitions for this job while it takes them."""
        self._by_job[uid] = _Reservation(number, size)
        try:
            yield
        finally:
            del self._by_job[uid]

    def note_taken(self, uid: str) -> None:
        """One more partition exists, so V-IPU counts it now."""
        if (reservation := self._by_job.get(uid)) is not None:
            reservation.left -= 1

    def of_others(self, uid: str, size: int) -> dict[str, int]:
        """By job, how many aligned blocks of ``size`` IPUs that reservations of other jobs may take at most."""
        return {
            each: reservation.left * max(1, reservation.size // size)
            for each, reservation in self._by_job.items()
            if each != uid
        }

"""Remembers what jobs were refused, by whom and when to retry, and for a while the capacity that was reported."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.controller.backoff import Backoff
from muster_operator.job.partition_api import PartitionRefusal

AGAIN = Backoff(base_s=2.0, cap_s=60.0)
TAKING, FREEING = "take", "free"  # used instead of a kind if the proxy refused
UNSUITABLE = "unsuitable"  # likewise, if a partition was released because its owner could not use it
ASKING = "ask"  # likewise, if a check request of a node failed
ROOM_S = 25.0  # a capacity answer is valid this long: shorter than a plan waits before it asks again


@dataclass
class CachedRefusal:
    """what: a PartitionRefusal of the proxy, a message, or None if the call is in progress. at: clock time of the next
    attempt."""

    what: PartitionRefusal | str | None
    at: float
    tries: int = 1
    foreign: bool = False


class RefusalCache:
    """Refusals of jobs by (kind, name) or (TAKING or FREEING, partition). A refusal only delays: a replica without this
    cache asks once more."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._by_job: dict[str, dict[tuple[str, str], CachedRefusal]] = {}
        self._rooms: dict[str, tuple[int, float]] = {}  # by job: reported capacity, and until when it is valid

    def note(
        self, uid: str, key: tuple[str, str], what: PartitionRefusal | str | None, *, foreign: bool = False
    ) -> None:
        held = self._by_job.setdefault(uid, {})
        tries = held[key].tries if key in held else 0
        at = self._clock() + min(AGAIN.cap_s, AGAIN.delay_s(tries, self._rng))
        held[key] = CachedRefusal(what, at, tries + 1, foreign)

    def forget(self, uid: str, key: tuple[str, str]) -> None:
        if (held := self._by_job.get(uid)) is not None:
            held.pop(key, None)
            if not held:
                del self._by_job[uid]

    def forget_job(self, uid: str) -> None:
        self._by_job.pop(uid, None)
        self._rooms.pop(uid, None)

    def clear(self) -> None:
        self._by_job.clear()
        self._rooms.clear()

    def note_room(self, uid: str, partitions: int) -> None:
        self._rooms[uid] = partitions, self._clock() + ROOM_S

    def room(self, uid: str) -> int | None:
        """Number of partitions that fit, as reported recently; None if unknown."""
        room = self._rooms.get(uid)
        return room[0] if room is not None and self._clock() < room[1] else None

    def waits(self, uid: str, key: tuple[str, str]) -> bool:
        """Whether it was refused and it is too early to retry."""
        trouble = self._by_job.get(uid, {}).get(key)
        return trouble is not None and self._clock() < trouble.at

    def again_s(self, uid: str) -> float | None:
        """Seconds until the first retry is due; overdue ones do not count, as the planner may no longer want them."""
        now = self._clock()
        return min((each.at - now for each in self._by_job.get(uid, {}).values() if each.at > now), default=None)

    def room_came(self, uid: str) -> None:
        """Allow requests of partitions at once; the number of refusals still counts for the next back-off."""
        self._rooms.pop(uid, None)
        for key, trouble in self._by_job.get(uid, {}).items():
            if key[0] == TAKING:
                trouble.at = self._clock()

    def is_foreign(self, uid: str, key: tuple[str, str]) -> bool:
        trouble = self._by_job.get(uid, {}).get(key)
        return trouble is not None and trouble.foreign

    def foreign(self, uid: str) -> dict[tuple[str, str], str]:
        return {k: str(v.what) for k, v in self._by_job.get(uid, {}).items() if v.foreign}

    def refused(self, uid: str) -> dict[tuple[str, str], str]:
        """Objects that the API server rejected, with its messages."""
        held = self._by_job.get(uid, {})
        return {k: v.what for k, v in held.items() if isinstance(v.what, str) and not v.foreign and k[0] != ASKING}

    def failed_requests(self, uid: str) -> dict[str, str]:
        """Nodes whose check requests failed, with the reason."""
        return {key[1]: str(each.what) for key, each in self._by_job.get(uid, {}).items() if key[0] == ASKING}

    def refusals(self, uid: str, what: str) -> dict[str, PartitionRefusal]:
        """Last refusals of TAKING or FREEING, by partition."""
        held = self._by_job.get(uid, {})
        return {
            key[1]: each.what
            for key, each in held.items()
            if key[0] == what and isinstance(each.what, PartitionRefusal)
        }

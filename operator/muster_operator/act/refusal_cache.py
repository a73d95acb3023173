"""What was refused to jobs, by whom, and when it is time to ask again; what was said of room, for a while."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.controller.backoff import Backoff
from muster_operator.job.partition_api import PartitionRefusal

AGAIN = Backoff(base_s=2.0, cap_s=60.0)
TAKING, FREEING = "take", "free"  # in place of a kind, where the proxy refused
ASKING = "ask"  # likewise, where a node could not be asked
ROOM_S = 25.0  # an answer about room is good for so long: shorter than a plan waits before it asks anew


@dataclass
class CachedRefusal:
    """Something refused. what: a PartitionRefusal of the proxy's, words, or None: it is under way. at: on the clock,
    when it may be tried again."""

    what: PartitionRefusal | str | None
    at: float
    tries: int = 1
    foreign: bool = False


class RefusalCache:
    """What was refused to jobs, by (kind, name) or (TAKING or FREEING, partition). It is only ever a reason to wait:
    who begins without it asks once more."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._by_job: dict[str, dict[tuple[str, str], CachedRefusal]] = {}
        self._rooms: dict[str, tuple[int, float]] = {}  # by job: what the proxy said of room, and until when it counts

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
        """How many partitions there is room for, as was said of late; None: nobody has asked."""
        said = self._rooms.get(uid)
        return said[0] if said is not None and self._clock() < said[1] else None

    def waits(self, uid: str, key: tuple[str, str]) -> bool:
        """It was refused, and it is too early to try again."""
        trouble = self._by_job.get(uid, {}).get(key)
        return trouble is not None and self._clock() < trouble.at

    def again_s(self, uid: str) -> float | None:
        """Until the next of them may be tried again; what nobody asks for any more stays passed over."""
        now = self._clock()
        return min((each.at - now for each in self._by_job.get(uid, {}).values() if each.at > now), default=None)

    def room_came(self, uid: str) -> None:
        """Partitions may be asked for at once; how often they were refused still counts."""
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
        """Objects that the API server does not take, and its words."""
        held = self._by_job.get(uid, {})
        return {k: v.what for k, v in held.items() if isinstance(v.what, str) and not v.foreign and k[0] != ASKING}

    def failed_requests(self, uid: str) -> dict[str, str]:
        """Nodes that could not be asked for checks, and why."""
        return {key[1]: str(each.what) for key, each in self._by_job.get(uid, {}).items() if key[0] == ASKING}

    def refusals(self, uid: str, what: str) -> dict[str, PartitionRefusal]:
        """The proxy's last ones to TAKING or to FREEING, by partition."""
        held = self._by_job.get(uid, {})
        return {
            key[1]: each.what
            for key, each in held.items()
            if key[0] == what and isinstance(each.what, PartitionRefusal)
        }

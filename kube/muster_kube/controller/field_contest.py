"""A field of ours that somebody else writes, too: whoever gives way more slowly each time ends the race of two writers.

What is taken away once is put back at once. What is taken away again and again is put back ever later, and the log says
by whom: only a person can end it.
"""

import random
from collections.abc import Iterable

import msgspec

from muster_kube.api.objects import ManagedFields
from muster_kube.controller.backoff import Backoff

BACKOFF = Backoff(base_s=2.0, cap_s=300.0)
AT_ONCE = 2  # writes: the first, and one that makes good what somebody did by mistake
QUIET_S = 1200.0  # what has stood for so long is not contested any more; more than the longest wait


class FieldContest:
    """Over one value in one place. Times are seconds since the epoch."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._value = ""
        self._writes = 0
        self._at = 0.0  # of the last one
        self._next = 0.0
        self._told = False

    def wait_s(self, value: str, now: float) -> float:
        """Until ``value`` may be written (again); 0: now."""
        if value != self._value or not 0 <= now - self._at < QUIET_S:
            self._value, self._writes, self._next, self._told = value, 0, 0.0, False
        return max(0.0, self._next - now)

    def should_warn(self) -> bool:
        """Whether it is to be told: once each time that it comes to a wait."""
        was_told, self._told = self._told, True
        return not was_told

    def note_write(self, now: float) -> None:
        self._at = now
        self._writes += 1
        late = self._writes - AT_ONCE
        self._next = now + (BACKOFF.delay_s(late, self._rng) if late >= 0 else 0.0)


def find_writers(entries: Iterable[ManagedFields], field: str) -> tuple[str, ...]:
    """The managers that own ``field`` (``caBundle``) of an object, wherever it stands in there."""
    return tuple(dict.fromkeys(entry.manager for entry in entries if _owns(entry.fields, f"f:{field}")))


def _owns(raw: msgspec.Raw, field: str) -> bool:
    try:
        left = [msgspec.json.decode(raw)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    while left:
        tree = left.pop()
        if isinstance(tree, dict):
            if field in tree:
                return True
            left += tree.values()
    return False

"""Backs off when another client keeps overwriting a field that Muster manages.

The first overwrite is corrected immediately. Repeated ones are corrected after growing delays, and the log names the
other client, because only a person can resolve the conflict.
"""

import random
from collections.abc import Iterable

import msgspec

from muster_kube.api.objects import ManagedFields
from muster_kube.controller.backoff import Backoff

BACKOFF = Backoff(base_s=2.0, cap_s=300.0)
AT_ONCE = 2  # writes without delay: the first one, and the correction of one mistake
QUIET_S = 1200.0  # a value that stays this long is no longer contested; more than the longest wait


class FieldContest:
    """The contest over one value in one place. Times are seconds since the epoch."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._value = ""
        self._writes = 0
        self._at = 0.0  # time of the last write
        self._next = 0.0
        self._warned = False

    def wait_s(self, value: str, now: float) -> float:
        """Seconds until ``value`` may be written again; 0: now."""
        if value != self._value or not 0 <= now - self._at < QUIET_S:
            self._value, self._writes, self._next, self._warned = value, 0, 0.0, False
        return max(0.0, self._next - now)

    def should_warn(self) -> bool:
        """True once for each contest."""
        warned, self._warned = self._warned, True
        return not warned

    def note_write(self, now: float) -> None:
        self._at = now
        self._writes += 1
        late = self._writes - AT_ONCE
        self._next = now + (BACKOFF.delay_s(late, self._rng) if late >= 0 else 0.0)


def find_writers(entries: Iterable[ManagedFields], field: str) -> tuple[str, ...]:
    """The managers that own ``field`` (such as ``caBundle``) anywhere in an object."""
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

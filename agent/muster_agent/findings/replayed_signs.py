"""Recognizes signs that are read a second time.

When the state file is lost, the kernel log is read from its beginning, while the NodeHealth holds the findings that
resulted from it. A sign that is not newer than the last sign of its published finding is a known one. The times of both
are computed from a clock that may have been set in between, hence the tolerance.
"""

from collections.abc import Iterable

import msgspec

TOLERANCE_S = 1.0
_NEVER = -1e15  # JSON has no infinity


class KnownSigns(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Signs of (component, reason) up to ``until`` are known.

    open:    their finding is still open
    reached: the last sign of the finding has been read again, so later ones are new
    """

    component: str
    reason: str
    until: float
    open: bool = False
    reached: bool = False


class ReplayedSigns:
    """The known signs. Falsy if every sign is new."""

    def __init__(self, replayed: Iterable[KnownSigns] = (), floor: float = 0.0) -> None:
        """floor: all signs of other keys up to this time are known; their findings are closed and no longer listed."""
        self._keys = {(entry.component, entry.reason): entry for entry in replayed}
        self._floor = floor

    def __bool__(self) -> bool:
        return bool(self._keys) or self._floor > 0

    def memory(self) -> tuple[tuple[KnownSigns, ...], float]:
        return tuple(self._keys.values()), self._floor

    def knows_sign(self, key: tuple[str, str], at: float) -> bool:
        entry = self._keys.get(key)
        if entry is None:
            return at <= self._floor
        if at > entry.until + TOLERANCE_S:
            return False
        if entry.open and not entry.reached and at >= entry.until - TOLERANCE_S:
            self._keys[key] = msgspec.structs.replace(entry, reached=True)
        return True

    def predates(self, key: tuple[str, str], at: float) -> bool:
        """True if the sign of the open finding ``key`` came after a clearing line at ``at``."""
        entry = self._keys.get(key)
        return entry is not None and entry.open and not entry.reached and at <= entry.until + TOLERANCE_S

    def close(self, key: tuple[str, str], at: float) -> None:
        """A request at ``at`` has closed the finding of ``key``, so signs up to then are known."""
        entry = self._keys.get(key)
        if entry is not None:
            until = max(entry.until, at - TOLERANCE_S)
            self._keys[key] = msgspec.structs.replace(entry, until=until, open=False)

    def forget(self, key: tuple[str, str]) -> None:
        """A line read now has closed the finding of ``key``, so a later sign opens it again."""
        entry = self._keys.get(key)
        if entry is not None:
            # kept, so that the floor does not apply to the key
            self._keys[key] = msgspec.structs.replace(entry, until=_NEVER, open=False)

"""What is known already of signs that will be read a second time.

When the state file is lost, the kernel log is read from its beginning, and the NodeHealth tells what came of it: a
sign not newer than what is told of its finding is the same sign again. Times come from two runs of the same clock
arithmetic with a clock that may have been stepped in between, hence the tolerance.
"""

from collections.abc import Iterable

import msgspec

TOLERANCE_S = 1.0
_NEVER = -1e15  # JSON has no infinity


class KnownSigns(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Signs of (component, reason) up to ``until`` are known. ``open``: their finding still stands.

    ``reached``: the sign the finding was last seen with has been read again, so what follows it is news.
    """

    component: str
    reason: str
    until: float
    open: bool = False
    reached: bool = False


class ReplayedSigns:
    """Keys known from an earlier life. Empty (falsy) when every sign is news."""

    def __init__(self, replayed: Iterable[KnownSigns] = (), floor: float = 0.0) -> None:
        """``floor``: signs up to this time of keys not named were closed and are no longer listed."""
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
        """True if a clearing line at ``at`` was followed by the sign that the open finding ``key`` stands on."""
        entry = self._keys.get(key)
        return entry is not None and entry.open and not entry.reached and at <= entry.until + TOLERANCE_S

    def close(self, key: tuple[str, str], at: float) -> None:
        """The finding of ``key`` was closed by a request at ``at``: signs up to then are part of what was closed."""
        entry = self._keys.get(key)
        if entry is not None:
            until = max(entry.until, at - TOLERANCE_S)
            self._keys[key] = msgspec.structs.replace(entry, until=until, open=False)

    def forget(self, key: tuple[str, str]) -> None:
        """The finding of ``key`` was closed by something read now: a sign that follows opens it anew."""
        entry = self._keys.get(key)
        if entry is not None:
            # kept with a past of its own, so that the floor does not swallow the key
            self._keys[key] = msgspec.structs.replace(entry, until=_NEVER, open=False)

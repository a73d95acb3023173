"""Writes of objects with an unknown outcome, because no answer came: what a write did is known once the object shows
it."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from muster_kube.api.versions import is_later

T = TypeVar("T")

LIMIT = 16  # writes of an object that are remembered, the last ones: with the usual pauses between them, some minutes'


class UnansweredWrites(Generic[T]):
    """T: what is remembered of a write. key: of the object; version: its resourceVersion before the write"""

    def __init__(self) -> None:
        self._writes: dict[str, deque[tuple[str, T]]] = {}

    def note(self, key: str, version: str, write: T) -> None:
        writes = self._writes.setdefault(key, deque(maxlen=LIMIT))
        if not writes or writes[-1] != (version, write):  # a retry of the same write adds nothing
            writes.append((version, write))

    def take_made(self, key: str, version: str, shows: Callable[[T], bool]) -> T | None:
        """The write that the object, now at ``version``, shows. It is returned once. Writes of an older version that it
        does not show were not made, and are forgotten."""
        writes = self._writes.pop(key, None)
        if writes is None:
            return None
        if unknown := [each for each in writes if not is_later(version, each[0])]:
            self._writes[key] = deque(unknown, LIMIT)
        return next((write for before, write in writes if is_later(version, before) and shows(write)), None)

    def forget(self, key: str) -> None:
        self._writes.pop(key, None)

    def clear(self) -> None:
        self._writes.clear()

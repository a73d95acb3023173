"""Writes of objects to which no answer came: each may have been made, and what it did is known once the object shows
it."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LIMIT = 4  # writes of one version of an object: once one of the first has arrived, all others conflict


class UnansweredWrites(Generic[T]):
    """T: what is remembered of a write. key: of the object; version: its resourceVersion before the write"""

    def __init__(self) -> None:
        self._writes: dict[str, list[tuple[str, T]]] = {}

    def note(self, key: str, version: str, write: T) -> None:
        writes = self._writes.setdefault(key, [])
        if len(writes) < LIMIT:
            writes.append((version, write))

    def find_made(self, key: str, version: str, shows: Callable[[T], bool]) -> T | None:
        """The write that the object, now at ``version``, shows. It is returned once; what was not made is forgotten."""
        writes = self._writes.pop(key, [])
        if unknown := [each for each in writes if each[0] == version]:
            self._writes[key] = unknown
        return next((write for before, write in writes if before != version and shows(write)), None)

    def forget(self, key: str) -> None:
        self._writes.pop(key, None)

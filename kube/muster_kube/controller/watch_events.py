"""Decodes watch events: the type of event, the object and its resourceVersion."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from muster_kube.api.errors import ApiFailure, read_failure
from muster_kube.api.list_decoder import UndecodableObject, as_undecodable, beyond_recursion_limit

T = TypeVar("T")

CHANGES = ("ADDED", "MODIFIED", "DELETED")


@dataclass(frozen=True)
class ObjectChanged(Generic[T]):
    """type: ADDED, MODIFIED or DELETED; an object's first event after a list may be any of them."""

    type: str
    object: T


@dataclass(frozen=True)
class ObjectRemoved:
    """An undecodable object was deleted."""

    key: str


@dataclass(frozen=True)
class Bookmark:
    """No change; after an interruption the watch can continue from ``resource_version``."""

    resource_version: str


class _BookmarkMetadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMetadata


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


_raw_event = msgspec.json.Decoder(_RawEvent)
_bookmark = msgspec.json.Decoder(_BookmarkObject)


class EventReader(Generic[T]):
    """Decodes the events of a watch of one type.

    The common case needs one decode; only events that do not match are decoded a second time.
    """

    def __init__(self, kind: type[T]) -> None:
        name = f"Event_{getattr(kind, '__name__', 'Object')}"
        typed: Any = msgspec.defstruct(name, [("type", str), ("object", kind)])
        self._typed: msgspec.json.Decoder[Any] = msgspec.json.Decoder(typed)

    def read(self, line: bytes) -> ObjectChanged[T] | ObjectRemoved | Bookmark | ApiFailure | UndecodableObject:
        """An ApiFailure is the server's ERROR event; an UndecodableObject is a changed object that does not match.

        Raises msgspec.MsgspecError if ``line`` is not an event: its object is then unknown.
        """
        try:
            event = self._typed.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._read_raw(line, error)
        if event.type in CHANGES:
            return ObjectChanged(event.type, event.object)
        return self._read_raw(line, ValueError(f"event type {event.type!r}"))

    @staticmethod
    def _read_raw(line: bytes, error: Exception) -> ObjectRemoved | Bookmark | ApiFailure | UndecodableObject:
        with beyond_recursion_limit():
            event = _raw_event.decode(line)
        if event.type == "BOOKMARK":
            return Bookmark(_bookmark.decode(event.object).metadata.resource_version)
        if event.type == "ERROR":
            return read_failure(memoryview(event.object)) or ApiFailure(message=str(error))
        item = as_undecodable(memoryview(event.object), error)
        if event.type == "DELETED" and item.key is not None:
            return ObjectRemoved(item.key)
        return item

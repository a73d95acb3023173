"""Decodes a list response item by item while it is received.

At resourceVersion 0 an API server ignores ``limit`` and sends everything in one body (240 MB for 15,000 Nodes). The
decoder therefore splits the stream at boundaries between items: ``},{"metadata":{`` (built-in types) or
``},{"apiVersion":`` (custom resources). The same bytes may occur inside an item, but then the bytes before them are
not a complete JSON value and do not decode. They cannot occur inside a string, where the quotes would be escaped. So a
split whose piece decodes is correct. If no split is possible, the whole body is decoded at the end.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from muster_kube.api.errors import BadAnswer

T = TypeVar("T")

_ITEMS = re.compile(rb'"items":\[')
_BOUNDARY = re.compile(rb'\},(?=\{"(?:metadata":\{|apiVersion":|kind":))')
NESTING_LIMIT = 10_000  # levels of JSON, as the API server reads them (Go's encoding/json)
WORTH_CUTTING = 1 << 18  # bytes; below this, decoding the whole body at once is cheaper


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


@dataclass(frozen=True)
class UndecodableObject:
    """An item that does not match its type. key: its name (``namespace/name``), if it is readable."""

    key: str | None
    raw: bytes
    error: str


@dataclass(frozen=True)
class ListPage(Generic[T]):
    items: list[T]
    resource_version: str
    continue_: str = ""
    undecodable: list[UndecodableObject] = field(default_factory=list)


class _Names(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Lenient(msgspec.Struct):
    metadata: _Names = msgspec.field(default_factory=_Names)


_lenient = msgspec.json.Decoder(_Lenient)
_any_json = msgspec.json.Decoder(msgspec.Raw)


class _Rest(msgspec.Struct):
    """The list without the items that were split off."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


_rest = msgspec.json.Decoder(_Rest)


def object_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def as_undecodable(raw: bytes | memoryview, error: Exception) -> UndecodableObject:
    """``raw`` with its key, if readable, so that messages can name the object."""
    try:
        with beyond_recursion_limit():
            metadata = _lenient.decode(raw).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError):
        metadata = _Names()
    key = object_key(metadata.namespace, metadata.name) if metadata.name else None
    return UndecodableObject(key, bytes(raw), str(error))


@contextmanager
def beyond_recursion_limit() -> Iterator[None]:
    """Lets msgspec skip values that are nested more deeply than Python recurses. Otherwise one such object would
    hide all others in its list. Only for decoders that build nothing of these values: a level that is skipped takes
    about 100 bytes of the stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + NESTING_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class PageReader(Generic[T]):
    """``feed`` it the chunks of one list response, then call ``finish``.

    transform:     applied to each item as soon as it is decoded, so that dropped fields use no memory
    worth_cutting: number of buffered bytes from which items are split off
    """

    def __init__(
        self,
        kind: type[T],
        path: str,
        *,
        transform: Callable[[T], T] | None = None,
        worth_cutting: int = WORTH_CUTTING,
    ) -> None:
        self._transform = transform
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._path = path
        self._buffer = bytearray()
        self._head: bytes | None = None  # everything up to and including `"items":[`
        self._items: list[T] = []
        self._undecodable: list[UndecodableObject] = []
        self._worth_cutting = worth_cutting
        self._next_cut = worth_cutting

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        if len(self._buffer) >= self._next_cut:
            self._cut()
            # without a boundary, wait for twice as many bytes, so that no byte is searched again and again
            self._next_cut = max(self._worth_cutting, 2 * len(self._buffer))

    def finish(self) -> ListPage[T]:
        """The page. Raises BadAnswer if the response is not a list of JSON objects."""
        whole = self._buffer if self._head is None else self._head + self._buffer
        try:
            with beyond_recursion_limit():
                rest = _rest.decode(whole)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            shown = bytes(whole[:120]).decode("utf-8", "replace")
            raise BadAnswer(200, f"not a list: {error}; the response begins with {shown!r}", self._path) from error
        for raw in rest.items or ():
            self._take(memoryview(raw))
        return ListPage(self._items, rest.metadata.resource_version, rest.metadata.continue_, self._undecodable)

    def _cut(self) -> None:
        if self._head is None:
            found = _ITEMS.search(self._buffer)
            if found is None:
                return
            self._head = bytes(self._buffer[: found.end()])
            del self._buffer[: found.end()]
        start = 0
        ends = [found.start() + 1 for found in _BOUNDARY.finditer(self._buffer)]
        for end in ends:
            # a copy: a Raw field would keep the buffer from shrinking
            if self._keep_if_whole(bytes(memoryview(self._buffer)[start:end])):
                start = end + 1
        del self._buffer[:start]

    def _keep_if_whole(self, piece: bytes) -> bool:
        """Decode ``piece`` if it is a complete JSON value."""
        try:
            self._keep(self._decoder.decode(piece))
        except (msgspec.ValidationError, RecursionError) as error:
            try:
                with beyond_recursion_limit():
                    _any_json.decode(piece)
            except msgspec.DecodeError:
                return False
            self._undecodable.append(as_undecodable(piece, error))
        except msgspec.DecodeError:
            return False
        return True

    def _keep(self, item: T) -> None:
        self._items.append(item if self._transform is None else self._transform(item))

    def _take(self, raw: memoryview) -> None:
        try:
            self._keep(self._decoder.decode(raw))
        except (msgspec.ValidationError, RecursionError) as error:
            self._undecodable.append(as_undecodable(raw, error))

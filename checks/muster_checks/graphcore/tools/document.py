"""The tools' JSON, where a key may occur twice with both values valid ("channel" in gc-links 1.0)."""

from collections.abc import Iterator

from muster_checks.base.bounded_read import Unreadable, json_document

LIMIT_BYTES = 4 << 20  # the 64 IPUs of a Pod with all their channels take 0.1 MiB


class JsonEntries(list[tuple[str, object]]):
    """A JSON object as its keys and values in order, including repeated keys."""

    def get(self, *names: str) -> object:
        """The first value under any of ``names``; None if there is none."""
        return next((value for key, value in self if key in names), None)


def read_document(text: bytes) -> list[JsonEntries]:
    """Every object of the document in order, outermost first. Raises Unreadable."""
    if len(text) > LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB of text: expected a JSON document of at most {LIMIT_BYTES >> 20} MiB")
    return list(_objects(json_document(text, pairs=JsonEntries)))


def _objects(document: object) -> Iterator[JsonEntries]:
    waiting = [document]  # not recursive: a document may be nested deeper than Python's stack
    while waiting:
        value = waiting.pop()
        if isinstance(value, JsonEntries):
            yield value
            waiting += [child for _, child in reversed(value)]
        elif isinstance(value, list):
            waiting += reversed(value)

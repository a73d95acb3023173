"""The tools' JSON, in which a key may come twice and mean both ("channel" in gc-links 1.0)."""

from collections.abc import Iterator

from muster_checks.base.bounded_read import Unreadable, json_document

LIMIT_BYTES = 4 << 20  # sixty-four IPUs of a Pod with all their channels are 0.1 MiB


class JsonEntries(list[tuple[str, object]]):
    """A JSON object as its keys and values, in order, none lost."""

    def get(self, *names: str) -> object:
        """The first value under any of ``names``; None where there is none."""
        return next((value for key, value in self if key in names), None)


def read_document(text: bytes) -> list[JsonEntries]:
    """Every object of the document, outermost first, in order. Raises Unreadable."""
    if len(text) > LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB of text: expected a JSON document of at most {LIMIT_BYTES >> 20} MiB")
    return list(_objects(json_document(text, pairs=JsonEntries)))


def _objects(document: object) -> Iterator[JsonEntries]:
    waiting = [document]  # not by recursion: a document may be nested deeper than Python's stack
    while waiting:
        value = waiting.pop()
        if isinstance(value, JsonEntries):
            yield value
            waiting += [child for _, child in reversed(value)]
        elif isinstance(value, list):
            waiting += reversed(value)

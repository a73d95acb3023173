"""The difference of two JSON objects as operations of RFC 6902."""

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def make_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> tuple[Operation, ...]:
    """Operations that turn ``before``, at ``path`` (a JSON pointer), into ``after``. Lists are replaced as a whole."""
    return tuple(_operations(before, after, path))


def _operations(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": _under(path, key)}
    for key, value in after.items():
        there = _under(path, key)
        if key not in before:
            yield {"op": "add", "path": there, "value": value}
        elif (found := before[key]) is value:
            continue
        elif isinstance(found, Mapping) and isinstance(value, Mapping):
            yield from _operations(found, value, there)
        elif found != value or type(found) is not type(value):
            yield {"op": "replace", "path": there, "value": value}


def _under(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"

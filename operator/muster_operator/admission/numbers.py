"""Numbers in a job as people write them: as text, and nothing is sure of a value that has not been validated yet."""

import re
from collections.abc import Mapping
from typing import Any

_POSITIVE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)

RawSpec = Mapping[str, Any]  # as it came: any JSON below it


def positive(value: object) -> int | None:
    """The number that the text ``value`` is, from 1 to a billion; None for anything else."""
    return int(value) if isinstance(value, str) and _POSITIVE.fullmatch(value) else None


def count(value: object) -> int | None:
    """``value`` where it is an integer from 1 to what 32 bits hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` where it is one, else an empty one."""
    return value if isinstance(value, dict) else {}


def is_given(spec: Mapping[str, Any], key: str) -> bool:
    """A null counts as nothing, as for the API server."""
    return spec.get(key) is not None

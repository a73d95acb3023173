"""Numbers in a job, which users write as strings. The values are not validated yet."""

import re
from collections.abc import Mapping
from typing import Any

_POSITIVE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)

RawSpec = Mapping[str, Any]  # as received: any JSON below it


def positive(value: object) -> int | None:
    """``value`` as a number from 1 to a billion; None for anything else."""
    return int(value) if isinstance(value, str) and _POSITIVE.fullmatch(value) else None


def count(value: object) -> int | None:
    """``value`` if it is an integer from 1 to 2**31 - 1."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def is_given(spec: Mapping[str, Any], key: str) -> bool:
    """null counts as absent, as in the API server."""
    return spec.get(key) is not None

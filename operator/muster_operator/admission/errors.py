"""Errors of a job's spec with their paths. The reader is the person who wrote the YAML."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 60  # characters shown of a user's value
ERRORS_LIMIT = 24


@dataclass(frozen=True)
class SpecError:
    """path: as in the YAML, ``spec.workers.replicas``. message: the value found there, and what is allowed."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def show_value(value: object) -> str:
    """``value`` as JSON, shortened."""
    if isinstance(value, (dict, list)):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, str):
        value = value[: SHOWN + 1]
    if isinstance(value, int) and value.bit_length() > SHOWN:
        return f"a number of {value.bit_length()} bits"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def unexpected_value(path: str, found: object, expected: str) -> SpecError:
    return SpecError(path, f"{show_value(found)}: expected {expected}")


def limit_errors(errors: Sequence[SpecError]) -> tuple[SpecError, ...]:
    """Without duplicates, in order, and at most ERRORS_LIMIT."""
    each = tuple(dict.fromkeys(errors))
    if len(each) <= ERRORS_LIMIT:
        return each
    left = len(each) - ERRORS_LIMIT
    return (*each[:ERRORS_LIMIT], SpecError("spec", f"{left} more errors"))

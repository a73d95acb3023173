"""YAML that a person wrote: fast, and no nesting or alias in it ends or stalls the process."""

import json
import reprlib
from collections.abc import Iterable
from typing import Any

import yaml

DEPTH_LIMIT = 50
FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both are safe loaders
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def load_yaml(text: str | bytes) -> Any:
    """The one document of ``text``. Raises yaml.YAMLError or ValueError."""
    depth = 0
    # the parser counts on the heap; what builds values from its events calls itself, in C, and would overrun the stack
    for event in yaml.parse(text, Loader=FAST_LOADER):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise ValueError(f"nested more than {DEPTH_LIMIT} deep")
    return yaml.load(text, Loader=FAST_LOADER)  # noqa: S506 - see there


def show_value(value: object) -> str:
    """``value`` for a message, as JSON where it is short; aliases may make it endless."""
    if value is None or isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)[:200]
    return _SHORT.repr(value)[:200]


def yaml_problem(error: Exception) -> str:
    """What :func:`load_yaml` raised, for a message: ``line 3: mapping values are not allowed here; expected YAML``."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{getattr(error, 'problem', None) or error}; expected YAML"


def field_path(location: Iterable[int | str]) -> str:
    """Where a validation error is, as people write it: ``rules[0].timeout``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text

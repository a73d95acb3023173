"""Loads YAML written by a person: fast, and safe against deep nesting and alias bombs that would stall the process."""

import json
import re
import reprlib
from collections.abc import Iterable
from typing import Any

import yaml

DEPTH_LIMIT = 50
FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both are safe loaders
_PATH = re.compile(r"[A-Za-z]\w*(\[\d{1,9}\]|\.\w+)*(?=: )")
_PART = re.compile(r"\w+")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def load_yaml(text: str | bytes) -> Any:
    """The single document in ``text``. Raises yaml.YAMLError or ValueError."""
    depth = 0
    # the parser uses the heap, but the C code that builds values recurses and could overflow the stack
    for event in yaml.parse(text, Loader=FAST_LOADER):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise ValueError(f"nested more than {DEPTH_LIMIT} deep")
    return yaml.load(text, Loader=FAST_LOADER)  # noqa: S506 - see there


def show_value(value: object) -> str:
    """``value`` for a message, as JSON if it is short; bounded, since aliases may make a value endless."""
    if value is None or isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)[:200]
    return _SHORT.repr(value)[:200]


def yaml_problem(error: Exception) -> str:
    """The error of :func:`load_yaml` as text: ``line 3: mapping values are not allowed here; expected YAML``."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{getattr(error, 'problem', None) or error}; expected YAML"


def line_of(text: str | bytes, location: Iterable[int | str]) -> int:
    """The line, from 1, of the value at ``location``; where the document lacks it, of the last part that it has. 0 for
    text that :func:`load_yaml` rejects."""
    try:
        node = yaml.compose(text, Loader=FAST_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return 0
    line = 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
            found = (node.value[part], node.value[part])
        else:
            found = None
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def field_path(location: Iterable[int | str]) -> str:
    """The location of a validation error in the usual notation: ``rules[0].timeout``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def location_in(message: str) -> list[int | str]:
    """The inverse of :func:`field_path`, for a message that begins with a path and a colon; else empty."""
    found = _PATH.match(message)
    return [] if found is None else [int(part) if part.isdigit() else part for part in _PART.findall(found[0])]

"""`--vary SETTING=VALUE,…`: copies of a policy, each with another value of one setting."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from muster_cli.usage import UsageError
from muster_tainter.policy.file import PolicyError, default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy

_NAME = r"[A-Za-z][A-Za-z0-9]{0,62}(?:\[[0-9]{1,3}\])?"
_SETTING = re.compile(rf"({_NAME}(?:\.{_NAME})*)=(.+)", re.DOTALL)
_PART = re.compile(r"[A-Za-z][A-Za-z0-9]*|[0-9]+")
_LINE = re.compile(r" \(line [0-9]+\)$", re.MULTILINE)  # of the changed copy, which nobody has seen
VALUES_MOST = 15


class NamedPolicy(NamedTuple):
    """name: unique among those compared: the file's, without its extension, or the setting that differs."""

    name: str
    policy: Policy


class Variation(NamedTuple):
    """setting: as errors of policies name it, such as ``pools[0].spares.nodes``."""

    setting: str
    values: tuple[str, ...]


def read_variation(text: str) -> Variation:
    """Raises ValueError."""
    match = _SETTING.fullmatch(text)
    values = tuple(value.strip() for value in match[2].split(",")) if match is not None else ()
    if match is None or not all(values) or len(values) > VALUES_MOST:
        raise ValueError(f"expected SETTING=VALUE,… with 1 to {VALUES_MOST} values, such as holdDown.base=5m,2h")
    return Variation(match[1], values)


def make_variants(path: Path | None, variation: Variation) -> Iterator[NamedPolicy]:
    """Of the policy in ``path``, which is valid; None: of the built-in one. Raises PolicyError, UsageError, OSError."""
    text = default_policy_text() if path is None else path.read_text("utf-8")
    parts = [int(part) if part.isdigit() else part for part in _PART.findall(variation.setting)]
    for value in variation.values:
        name = f"{variation.setting}={value}"
        data = yaml.safe_load(text)
        try:
            _set(data, parts, yaml.safe_load(value))
        except (LookupError, TypeError, yaml.YAMLError):
            raise UsageError(f"--vary {name}: the policy has no such place for a value") from None
        try:
            changed = parse_policy(yaml.safe_dump(data), "--vary " + name, None if path is None else path.parent)
        except PolicyError as error:
            raise PolicyError(_LINE.sub("", str(error))) from None
        yield NamedPolicy(name, changed)


def _set(place: object, parts: list[str | int], value: object) -> None:
    """Sections on the way are made; entries of lists are not. Raises LookupError, TypeError."""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if isinstance(place, dict) and isinstance(part, str):
            if last:
                place[part] = value
            else:
                place = place.setdefault(part, {})
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            if last:
                place[part] = value
            else:
                place = place[part]
        else:
            raise LookupError(part)

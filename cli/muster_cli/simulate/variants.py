"""`--vary SETTING=VALUE,…`: copies of a policy, each with another value of one setting of it, or of how often the
fleet's heavy checks are due."""

import re
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from muster_cli.usage import UsageError
from muster_tainter.policy.file import PolicyError, default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.comparison import Case
from muster_tainter.simulation.scenario.fleet_file import parse_planned, require_heavy

_NAME = r"[A-Za-z][A-Za-z0-9-]{0,62}(?:\[[0-9]{1,3}\])?"
_SETTING = re.compile(rf"({_NAME}(?:\.{_NAME})*)=(.+)", re.DOTALL)
_PART = re.compile(r"[A-Za-z][A-Za-z0-9-]*|(?<=\[)[0-9]+")
_LINE = re.compile(r" \(line [0-9]+\)$", re.MULTILINE)  # of the changed copy, which nobody has seen
VALUES_MOST = 15
PLANNED = "agents.planned."  # of the fleet file
NEVER = "never"


class NamedPolicy(NamedTuple):
    """name: unique among those compared: the file's, without its extension, or the setting that differs. planned: see
    :class:`~muster_tainter.simulation.comparison.Case`"""

    name: str
    policy: Policy
    planned: Mapping[str, float | None] = {}

    @property
    def case(self) -> Case:
        return Case(self.policy, self.planned)


class Variation(NamedTuple):
    """setting: as errors of policies name it, such as ``pools[0].spares.nodes``, or with the name of a rule or pool:
    ``pools.all.spares.nodes``."""

    setting: str
    values: tuple[str, ...]


def read_variation(text: str) -> Variation:
    """Raises ValueError."""
    match = _SETTING.fullmatch(text)
    values = tuple(value.strip() for value in match[2].split(",")) if match is not None else ()
    if match is None or not all(values) or len(values) > VALUES_MOST:
        raise ValueError(f"expected SETTING=VALUE,… with 1 to {VALUES_MOST} values, such as holdDown.base=5m,2h")
    return Variation(match[1], values)


def make_variants(path: Path | None, policy: Policy, variation: Variation) -> Iterator[NamedPolicy]:
    """Of ``policy``, which is in ``path``; None: the built-in one. Raises PolicyError, UsageError, OSError."""
    if variation.setting.startswith(PLANNED):
        return _with_other_plans(policy, variation)
    return _with_other_settings(path, variation)


def _with_other_plans(policy: Policy, variation: Variation) -> Iterator[NamedPolicy]:
    check = variation.setting.removeprefix(PLANNED)
    for value in variation.values:
        name = f"{variation.setting}={value}"
        try:
            require_heavy(check)
            planned = {check: None if value == NEVER else parse_planned(value)}
        except ValueError as error:
            raise UsageError(f"--vary {name}: {error}") from None
        yield NamedPolicy(name, policy, planned)


def _with_other_settings(path: Path | None, variation: Variation) -> Iterator[NamedPolicy]:
    text = default_policy_text() if path is None else path.read_text("utf-8")
    parts = [int(part) if part.isdigit() else part for part in _PART.findall(variation.setting)]
    for value in variation.values:
        name = f"{variation.setting}={value}"
        data = yaml.safe_load(text)
        try:
            new = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a 13th month
            raise UsageError(f"--vary {name}: the value is not valid YAML: {' '.join(str(error).split())}") from None
        try:
            _set(data, parts, new)
        except LookupError:
            raise UsageError(f"--vary {name}: the policy has no such place for a value") from None
        try:
            changed = parse_policy(yaml.safe_dump(data), "--vary " + name, None if path is None else path.parent)
        except PolicyError as error:
            raise PolicyError(_LINE.sub("", str(error))) from None
        yield NamedPolicy(name, changed)


def _set(place: object, parts: list[str | int], value: object) -> None:
    """Sections on the way are made; entries of lists are not. What lies on the way is copied, because an anchor may
    have put it into other places, too. Raises LookupError."""
    *way, last = parts
    for part in way:
        if isinstance(place, dict):
            place[part] = copy(place.get(part, {}))
            place = place[part]
        else:
            entries, number = _find_entry(place, part)
            entries[number] = copy(entries[number])
            place = entries[number]
    if not isinstance(place, dict):
        raise LookupError(last)  # noqa: TRY004 - the path is wrong, whatever is there
    place[last] = value


def _find_entry(place: object, part: str | int) -> tuple[list[Any], int]:
    """A list, and which of its entries has this number or name. Raises LookupError."""
    entries = place if isinstance(place, list) else []
    named = [i for i, entry in enumerate(entries) if isinstance(entry, dict) and entry.get("name") == part]
    found = [part] if isinstance(part, int) and part < len(entries) else named
    if len(found) != 1:
        raise LookupError(part)
    return entries, found[0]

"""policy.yaml: parses text to :class:`Policy`, reports errors with their place, and watches the file.

inotify watches the folder, because editors and ConfigMap volumes replace files instead of writing them.
"""

import json
import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from inotify_simple import INotify, flags
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from muster_checks.base.user_yaml import field_path, line_of, location_in
from muster_tainter.policy.budgets import Budget, Incidents, TaintRate
from muster_tainter.policy.manifest_files import BadFile, insert_files
from muster_tainter.policy.match import Match
from muster_tainter.policy.pools import Pool, Selector
from muster_tainter.policy.recovery import HoldDown, Proof
from muster_tainter.policy.repair import REPAIRED, Create, Drain, Job, Quarantine, Remedy, Repair
from muster_tainter.policy.rules import DeadMan, Policy, Rule, SilentTaint, TaintSpec
from muster_tainter.policy.sections.heavy_checks import HeavyTesting, PoolTesting
from muster_tainter.policy.sections.in_flight import InFlight
from muster_tainter.policy.sections.sources import SOURCE_MODELS as SOURCES
from muster_tainter.policy.sections.sources import Sources
from muster_tainter.policy.spares import Spares

SIZE_LIMIT = 1 << 20  # bytes; a ConfigMap holds no more

_TYPE_WORDS = {
    "tuple_type": "a list",
    "string_type": "a text",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "too_short": "at least one entry",
    "string_too_short": "a text that is not empty",
}


class PolicyError(Exception):
    """The policy is invalid: which file, where in it, what was found, what is allowed. One problem per line."""


def default_policy_text() -> str:
    return files("muster_tainter.policy").joinpath("default.yaml").read_text("utf-8")


def load_policy(path: Path | None) -> Policy:
    """The policy in ``path``, or the default one. Raises PolicyError."""
    if path is None:
        return parse_policy(default_policy_text(), "policy.yaml (default)")
    try:
        text = _read(path)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise PolicyError(f"{path}: {error}") from error
    return parse_policy(text, path.name, path.parent)


def _read(path: Path) -> str:
    """Raises OSError, ValueError."""
    with path.open("rb") as file:
        raw = file.read(SIZE_LIMIT + 1)
    if len(raw) > SIZE_LIMIT:
        raise ValueError(f"expected at most {SIZE_LIMIT} bytes")
    return raw.decode("utf-8")


def _yaml(text: str) -> object:
    """Raises ValueError."""
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader that rejects duplicate keys
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a 13th month, !!int of no number
        raise ValueError(" ".join(str(error).split())) from error


def parse_policy(text: str, name: str = "policy.yaml", folder: Path | None = None) -> Policy:
    """Raises PolicyError; each of its lines begins with ``name``. folder: of files that the policy refers to."""
    try:
        data = _yaml(text)
    except ValueError as error:
        raise PolicyError(f"{name}: {error}") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{name}: expected a mapping with the key rules")
    try:
        if folder is not None:
            insert_files(data, lambda file: _yaml(_read(folder / file)))
    except BadFile as error:
        raise PolicyError(f"{name}: {error}") from error
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise PolicyError("\n".join(f"{name}: {_located(detail, text)}" for detail in error.errors())) from error


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def _located(detail: ErrorDetails, text: str) -> str:
    problem = _line(detail)
    return f"{problem} (line {line_of(text, detail['loc'] or location_in(problem))})"


def _line(detail: ErrorDetails) -> str:
    where = field_path(detail["loc"])
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error" and not where.strip():
        return str(context.get("error", detail["msg"]))
    if kind == "extra_forbidden":
        return f"{where}: unknown key: expected {_keys_at(detail['loc'])}"
    if kind == "missing":
        return f"{where}: missing"
    found = _as_json(detail["input"])
    shown = found if len(found) <= 80 else found[:77] + "…"
    if kind in ("literal_error", "enum"):
        allowed = str(context.get("expected", "")).replace("''", '""').replace("'", "")
        return f"{where}: {shown}: expected {allowed}"
    if kind == "value_error":
        text = str(context.get("error", detail["msg"]))
        return f"{where}: {shown}: {text}"
    expected = _TYPE_WORDS.get(kind)
    return f"{where}: {shown}: {'expected ' + expected if expected else detail['msg']}"


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):  # a date as a key, a recursive alias
        return repr(value)


def _keys_at(loc: Sequence[str | int]) -> str:
    parents = [part for part in loc[:-1] if isinstance(part, str)]
    model: type[BaseModel] = Policy
    for parent in parents:
        model = _MODELS.get((model, parent), model)
    keys = sorted(field.alias or name for name, field in model.model_fields.items())
    return ", ".join(keys[:-1]) + " or " + keys[-1] if len(keys) > 1 else keys[0]


# the model under each key of a model
_MODELS: dict[tuple[type[BaseModel], str], type[BaseModel]] = {
    (Policy, "rules"): Rule,
    (Rule, "match"): Match,
    (Rule, "taint"): TaintSpec,
    (Rule, "proof"): Proof,
    (Policy, "pools"): Pool,
    (Pool, "selector"): Selector,
    (Pool, "testing"): PoolTesting,
    (Pool, "budget"): Budget,
    (Budget, "rate"): TaintRate,
    (Policy, "testing"): HeavyTesting,
    (Policy, "holdDown"): HoldDown,
    (Policy, "incidents"): Incidents,
    (Policy, "deadMan"): DeadMan,
    (DeadMan, "taint"): SilentTaint,
    (Policy, "sources"): Sources,
    (Policy, "inFlight"): InFlight,
    (Policy, "quarantine"): Quarantine,
    (Policy, "formerTaints"): TaintSpec,
    (Pool, "drain"): Drain,
    (Pool, "repair"): Repair,
    (Pool, "spares"): Spares,
    **{(Repair, str(name)): Remedy for name in REPAIRED},
    (Remedy, "job"): Job,
    (Remedy, "create"): Create,
    **SOURCES,
}


class FileWatch:
    """Signals possible changes of the file at ``path``. ``fileno()`` becomes readable; then call ``drain``.

    Watches its folder, not the file: a ConfigMap volume replaces the link ``..data`` in that folder.
    """

    def __init__(self, path: Path) -> None:
        self._names = {path.name, "..data"}
        self._inotify = INotify(nonblocking=True)
        try:
            self._inotify.add_watch(
                os.fspath(path.parent), flags.CLOSE_WRITE | flags.MOVED_TO | flags.CREATE | flags.DELETE | flags.ONLYDIR
            )
        except OSError:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def drain(self) -> bool:
        """Read the inotify events; True if they concern the file."""
        events = self._inotify.read(timeout=0)
        return any(event.name in self._names or event.mask & flags.Q_OVERFLOW for event in events)

    def close(self) -> None:
        self._inotify.close()


class LivePolicy:
    """The active policy; ``reload`` keeps the last valid one if the file is invalid.

    on_reload(error): called after every reload that found a change, with None or the error
    """

    def __init__(self, path: Path | None, on_reload: Callable[[str | None], None] = lambda _: None) -> None:
        """Raises PolicyError: the tainter does not start with an invalid policy."""
        self.path = path
        self.on_reload = on_reload
        self.error: str | None = None
        self.current = load_policy(path)

    def reload(self) -> bool:
        """Read the file again; True if the active policy changed."""
        try:
            policy = load_policy(self.path).replacing(self.current)
        except PolicyError as error:
            if str(error) != self.error:
                self.error = str(error)
                self.on_reload(self.error)
            return False
        changed = policy != self.current
        if changed:  # otherwise keep the object and everything cached for it
            self.current = policy
        if changed or self.error is not None:
            self.error = None
            self.on_reload(None)
        return changed

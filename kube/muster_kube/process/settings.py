"""Settings of a component, from a YAML file, environment variables and flags; later sources take precedence.

All are checked before the component starts. An error names the place (file and key, variable or flag), what was found
and what is allowed.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

FILE_LIMIT = 1 << 20  # bytes
# variables that Kubernetes sets in every pod for a Service whose name begins with a component's prefix
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")

S = TypeVar("S", bound=BaseModel)


class SettingsError(Exception):
    """Invalid settings; the message has one line for each problem."""


def load_settings(
    model: type[S],
    prefix: str,
    file: Path | None,
    flags: Mapping[str, object],
    environ: Mapping[str, str] = os.environ,
    *,
    nested: Mapping[str, type[BaseModel]] | None = None,
) -> S:
    """``flags``: by settings name, None for those not given. ``nested``: mappings whose values are models; variables
    cannot set them. Raises SettingsError."""
    nested = nested or {}
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for key, value in (_read(file) if file is not None else {}).items():
        values[key], places[key] = value, f"{file}: {key}"
    for name, text in environ.items():
        if not name.startswith(prefix) or _is_service_link(name.removeprefix(prefix), text):
            continue
        key = name.removeprefix(prefix).lower()
        scalars = [field for field in model.model_fields if field not in nested]
        if key not in scalars:
            allowed = ", ".join(prefix + scalar.upper() for scalar in scalars)
            raise SettingsError(f"{name}: unknown variable; allowed: {allowed}")
        values[key], places[key] = text, name
    for key, flag in flags.items():
        if flag is not None:
            values[key], places[key] = flag, f"--{key.replace('_', '-')}"
    try:
        return model.model_validate(values)
    except ValidationError as error:
        places |= {key: f"--{key.replace('_', '-')}" for key in flags if key not in places}
        raise SettingsError("\n".join(_explain_all(error, prefix, places, model, nested))) from error


def explain(error: ValidationError, place: str, model: type[BaseModel]) -> list[str]:
    """One line for each error in a ``model`` at ``place``: where, value, what is allowed."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join([place, *map(str, item["loc"])]).strip(".")
        lines.append(error_line(where, item["type"], item["input"], item["msg"], _names(model)))
    return lines


def explain_briefly(error: ValidationError, place: str, model: type[BaseModel], *, limit: int = 5) -> str:
    """The first ``limit`` lines joined into one, with the number of further ones."""
    lines = explain(error, place, model)
    more = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
    return "; ".join(lines[:limit] + more)


def _explain_all(
    error: ValidationError,
    prefix: str,
    places: Mapping[str, str],
    model: type[BaseModel],
    nested: Mapping[str, type[BaseModel]],
) -> list[str]:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        first, *rest = [str(part) for part in item["loc"]] or [""]
        where = ".".join([places.get(first, first), *rest])
        if item["type"] == "missing" and not rest:
            lines.append(f"{where} is required (or {prefix}{first.upper()}, or {first} in the settings file)")
            continue
        inner = nested.get(first, model) if rest else model
        lines.append(error_line(where, item["type"], item["input"], item["msg"], _names(inner)))
    return lines


def error_line(where: str, kind: str, found: object, allowed: str, names: Iterable[str]) -> str:
    """One of pydantic's errors (``type``, ``input`` and ``msg``) as one line. names: the allowed keys."""
    if kind == "extra_forbidden":
        allowed = f"unknown key; allowed: {', '.join(names) or 'none'}"
    allowed = allowed.removeprefix("Value error, ")
    if not where:  # an error about several keys, which the text names
        return allowed
    return f"{where}: {allowed}" if kind == "missing" else f"{where}: {quote(found)}: {allowed}"


def quote(value: object) -> str:
    """The value as found, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _is_service_link(rest: str, text: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(rest)) or (rest == "PORT" and "://" in text)


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_LIMIT + 1)
    except OSError as error:
        raise SettingsError(f"{file}: cannot read the file: {error.strerror}") from error
    if len(raw) > FILE_LIMIT:
        raise SettingsError(f"{file}: more than {FILE_LIMIT} bytes")
    try:
        document = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise SettingsError(f"{file}: {quote(document)}: expected a mapping of settings")
    return document

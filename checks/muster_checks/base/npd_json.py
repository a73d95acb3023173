"""node-problem-detector's configuration files, read the way that program reads them (Go's encoding/json).

Keys match in any case, null means not set, and unknown keys are ignored; but strings and numbers are not converted into
each other. Sizes are bounded, and an error names the key, what was found and what is allowed.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from muster_checks.base.user_yaml import field_path, show_value

FILE_BYTES = 1 << 20
_NOT_IN_A_REASON = re.compile(r"[^A-Za-z0-9_:,]")
_OF_WINDOWS = re.compile(r"[A-Za-z]:\\")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(ns|us|µs|μs|ms|s|m|h)")


class FileRefused(ValueError):
    """The file cannot be used. The text names the key, the value and what is allowed; the caller names the file."""


def duration(text: object) -> float:
    """Seconds from the formats of Go's time.ParseDuration: ``30s``, ``1m30s``, ``1.5h``, ``0``. Raises ValueError.

    Negative durations are rejected: they have no meaning in these files.
    """
    if isinstance(text, str) and text[:1] != "-":
        rest = text.removeprefix("+")
        if rest == "0":
            return 0.0
        parts = _DURATION.findall(rest)
        if parts and "".join(number + unit for number, unit in parts) == rest:
            return float(sum(float(number) * _UNITS_S[unit] for number, unit in parts))
    raise ValueError("expected a duration such as 30s, 5m or 1h30m")


Duration = Annotated[float, BeforeValidator(duration)]
Reason = Annotated[
    str,
    Field(min_length=1, max_length=128),
    # a reason becomes part of conditions, labels and policy rules, so it must be one word
    AfterValidator(lambda reason: _NOT_IN_A_REASON.sub("_", reason)),
]


class NpdForm(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _as_go_reads_it(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named = {(field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()}
        return {named.get(str(key).lower(), key): value for key, value in given.items() if value is not None}


def read_document(path: Path) -> object:
    """The JSON document in a file. Raises FileRefused."""
    try:
        if not path.is_file():  # reading a FIFO would block
            raise FileRefused("not a regular file")
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise FileRefused(f"cannot be read: {error.strerror or error}") from None
    if len(raw) > FILE_BYTES:
        raise FileRefused(f"longer than {FILE_BYTES >> 20} MiB")
    try:
        document: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FileRefused(f"not valid JSON: {str(error)[:200]}") from None
    return document


def is_of_windows(path: str) -> bool:
    return _OF_WINDOWS.match(path) is not None


def first_error(error: ValidationError) -> str:
    """The first error, in the form ``rules[0].timeout: "5x": expected …``."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = field_path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{path}: missing"
    if first["type"] == "extra_forbidden":
        return f"{path}: unknown key"
    found = show_value(first["input"])
    return f"{path}: {found}: {message}" if path else f"{found}: {message}"

"""Expected values of hardware as data: one YAML file per kind, with rows of model, values and their source.

An operator's file (parameter ``expected``, one per pool) adds rows and overrides values of the shipped rows. A row's
glob is matched against the model's name; of several matches the longest pattern wins.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import yaml

from muster_checks.base.execution import CannotTell

R = TypeVar("R", bound=msgspec.Struct)
FILE_LIMIT_BYTES = 1 << 20


class ModelTable(Generic[R]):
    """Rows of type ``R``, a Struct whose first field is ``model`` (a glob, case ignored)."""

    def __init__(self, rows: Sequence[R], over: Sequence[R] = ()) -> None:
        self.rows = tuple(rows)
        self.over = tuple(over)

    def of(self, model: str) -> R | None:
        """The values for ``model``; None if no row matches. An operator's row wins in each field that it sets."""
        base, mine = _closest(self.rows, model), _closest(self.over, model)
        if base is None or mine is None:
            return mine or base
        changed = {
            name: value
            for name, default in zip(mine.__struct_fields__, _defaults(type(mine)), strict=True)
            if (value := getattr(mine, name)) != default
        }
        return msgspec.structs.replace(base, **changed)


def load_table(kind: type[R], shipped: str, own: Path | None = None) -> ModelTable[R]:
    """The table ``shipped`` (``"nvidia/models.yaml"`` within this package), overridden by the rows of the file ``own``.

    Raises CannotTell if ``own`` cannot be used: a check must not judge by values that its operator overrides.
    """
    rows = _load_shipped(kind, shipped)
    if own is None:
        return ModelTable(rows)
    try:
        with own.open("rb") as file:
            text = file.read(FILE_LIMIT_BYTES + 1)
        over = msgspec.convert(yaml.safe_load(text) or [], list[kind])  # type: ignore[valid-type] # a type at run time
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise CannotTell(f"{own}: {error}", "BadExpectations") from None
    if len(text) > FILE_LIMIT_BYTES:
        raise CannotTell(f"{own}: larger than 1 MiB", "BadExpectations")
    return ModelTable(rows, over)


@cache
def _load_shipped(kind: type[R], shipped: str) -> tuple[R, ...]:
    text = files("muster_checks").joinpath(shipped).read_bytes()
    return tuple(msgspec.convert(yaml.safe_load(text), list[kind]))  # type: ignore[valid-type] # a type at run time


def _closest(rows: Sequence[R], model: str) -> R | None:
    name = model.casefold()
    fitting = [row for row in rows if fnmatchcase(name, _pattern(row))]
    return max(fitting, key=lambda row: len(_pattern(row)), default=None)


def _pattern(row: msgspec.Struct) -> str:
    return str(getattr(row, row.__struct_fields__[0])).casefold()


def _defaults(kind: type[msgspec.Struct]) -> list[object]:
    # a default_factory ([], {}) also gives a default: a row without the field has not set it
    return [
        field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
    ]

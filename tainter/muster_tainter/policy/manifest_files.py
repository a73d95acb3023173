"""Manifests that a policy refers to by file (``job: {file: reset.yaml}``, ``create: {file: …}``): they are in the same
folder, so one ConfigMap holds both."""

import re
from collections.abc import Callable, Iterator
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_INTO = {"job": "template", "create": "manifest"}


class BadFile(Exception):
    """The place in the policy, what was found, what is allowed."""


def insert_files(data: dict[Any, Any], read: Callable[[str], object]) -> None:
    """Replace file names in ``data`` by the files' contents. read: returns the parsed file; raises ValueError, OSError.
    Raises BadFile. Other errors in the policy's structure are left to the validation."""
    for where, way, named in _named(data):
        if not isinstance(named["file"], str) or not _NAME.fullmatch(named["file"]):
            found = repr(named["file"])[:80]
            raise BadFile(f"{where}.file: {found}: expected the name of a file in the policy's own folder")
        if _INTO[way] in named:
            raise BadFile(f"{where}: expected one of file and {_INTO[way]}")
        try:
            named[_INTO[way]] = read(named["file"])
        except OSError as error:
            raise BadFile(f'{where}.file: "{named["file"]}": {error.strerror or error}') from error
        except ValueError as error:
            raise BadFile(f'{where}.file: "{named["file"]}": {error}') from error
        del named["file"]


def _named(data: dict[Any, Any]) -> Iterator[tuple[str, str, dict[Any, Any]]]:
    pools = data.get("pools")
    for i, pool in enumerate(pools if isinstance(pools, list) else ()):
        repair = pool.get("repair") if isinstance(pool, dict) else None
        for name, remedy in (repair if isinstance(repair, dict) else {}).items():
            for way in _INTO:
                named = remedy.get(way) if isinstance(remedy, dict) else None
                if isinstance(named, dict) and "file" in named:
                    yield f"pools[{i}].repair.{name}.{way}", way, named

"""Bounded reads of files and tool output: a value that cannot be read is None or Unreadable, never a guess.

Vendors print "N/A", "[Not Supported]" or "[Unknown Error]" in place of a number. Their JSON may follow a line of
warnings, be truncated, or repeat a key.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

FILE_LIMIT_BYTES = 1 << 20
DOCUMENT_LIMIT_BYTES = 16 << 20  # no tool prints this much; a larger document is rejected before it is parsed
# a number in another locale's form ("1.234,5") is not accepted: our own commands run in the C locale
_NUMBER = re.compile(
    r"\s*(?![-+]?0[xX])([-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?)"
    r"(?![0-9.,:]).{0,64}",
    re.S,
)


class Unreadable(ValueError):
    """The text is not what its tool should print. The message names what was expected and where parsing failed."""


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else: opening a FIFO would block the whole event
    loop until somebody writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor, no path


def read_text(path: Path, limit_bytes: int = FILE_LIMIT_BYTES) -> str | None:
    """The stripped text of a small file (sysfs, procfs), or None if it cannot be read for any reason."""
    try:
        with open_plain(path) as file:
            return file.read(limit_bytes).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # ValueError: not a valid file name
        return None


def read_integer(path: Path) -> int | None:
    """The number in a sysfs file, decimal or ``0x…``; None if there is none, or if it does not fit 64 bits."""
    text = read_text(path, 256)
    if not text:
        return None
    word = text.split()[0]
    for base in (0, 10):  # Python rejects "0042" with base 0; it is meant as decimal
        try:
            value = int(word, base)
        except ValueError:
            continue
        return value if -(2**63) <= value < 2**64 else None
    return None


def names_in(folder: Path) -> list[str]:
    """The entries of a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):
        return []


def number(text: object) -> float | None:
    """The number at the beginning of ``text`` (``"31.5 GB/s"``, ``"1,024 MiB"``, 31, ``"98 %"``), ignoring its unit.

    None for ``N/A``, ``[Unknown Error]``, ``inf``, ``nan``, a boolean, anything else.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    if isinstance(text, str):
        found = _NUMBER.fullmatch(text[:256])
        if found is None:
            return None
        text = found[1].replace(",", "")
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if abs(value) < 1e300 else None  # excludes inf and nan


def integer(text: object) -> int | None:
    """Like :func:`number`, for whole numbers; accepts ``0x…`` too."""
    if isinstance(text, str) and text.strip().lower().startswith("0x"):
        try:
            return int(text.strip().split()[0], 16)
        except ValueError:
            return None
    value = number(text)
    return int(value) if value is not None and value == int(value) else None


def json_document(
    text: bytes, pairs: Callable[[list[tuple[str, object]]], object] | None = None
) -> dict[str, object] | list[object]:
    """The first JSON object or array in ``text``; warnings before it and text after it are ignored.

    pairs: used as ``object_pairs_hook``, for documents that repeat a key and mean every value
    Raises Unreadable.
    """
    if len(text) > DOCUMENT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB of text: expected a JSON document of at most 16 MiB")
    whole = text.decode("utf-8", "replace").lstrip("\ufeff")
    if not whole.strip():
        raise Unreadable("empty: expected a JSON document")
    decoder = json.JSONDecoder(object_pairs_hook=pairs)
    trouble = "no { or [ at the beginning of a line: expected a JSON document"
    for tried, start in enumerate(re.finditer(r"^[ \t]*(?=[{\[])", whole, re.M)):
        if tried == 8:  # a tool's warning does not contain this many lines that look like JSON
            break
        try:
            value, _ = decoder.raw_decode(whole, start.end())
        except (ValueError, RecursionError) as error:
            trouble = f"not a complete JSON document: {str(error)[:120]}"
            continue
        if isinstance(value, (dict, list)) and (value or not tried):
            return value
    raise Unreadable(trouble)

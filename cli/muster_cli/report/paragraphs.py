"""Paragraphs for a terminal: folded to its width, verdicts in colour; whole lines for what reads a pipe."""

import os
import sys
import textwrap
from collections.abc import Iterable

from muster_checks.base.vocabulary import shorten

_PAINT = {
    "PAUSED": "\x1b[1;33m",
    "TAINTED": "\x1b[1;31m",
    "WITHHELD": "\x1b[1;33m",
    "FAULTY": "\x1b[33m",
    "WAITING": "\x1b[33m",
    "HELD": "\x1b[36m",
    "FREE": "\x1b[32m",
}
_LINE_LIMIT = 4096
_HANG = " " * 11  # below a link's text


def page(lines: Iterable[str]) -> list[str]:
    """Lines as wide as a terminal, with the first words in colour; whole ones for what reads a pipe."""
    clean = [shorten(line, _LINE_LIMIT) if line.strip() else "" for line in lines]
    if not sys.stdout.isatty():
        return clean
    width = max(40, os.get_terminal_size().columns)
    folded = [
        part for line in clean for part in (textwrap.wrap(line, width, subsequent_indent=_HANG) if line else [""])
    ]
    return [_painted(line) for line in folded] if "NO_COLOR" not in os.environ else folded


def _painted(line: str) -> str:
    if line.startswith(" "):
        return line
    for word, paint in _PAINT.items():
        before, found, after = line.partition(word)
        if found and len(before.split()) <= 1:
            return f"{before}{paint}{found}\x1b[0m{after}"
    return line

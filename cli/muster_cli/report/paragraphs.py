"""Paragraphs: wrapped to the width of a terminal and coloured there, or full lines for a pipe."""

import os
import sys
import textwrap
from collections.abc import Iterable

from muster_checks.base.vocabulary import shorten
from muster_cli.report.colours import STATE_STYLES, paint, use_colour

_LINE_LIMIT = 4096
_HANG = " " * 11  # aligns wrapped lines with the text of the first


def fold_lines(lines: Iterable[str]) -> list[str]:
    """Wrap ``lines`` to the width of the terminal and colour the state; full lines if stdout is no terminal."""
    clean = [shorten(line, _LINE_LIMIT) if line.strip() else "" for line in lines]
    if not sys.stdout.isatty():
        return clean
    width = max(40, os.get_terminal_size().columns)
    folded = [
        part for line in clean for part in (textwrap.wrap(line, width, subsequent_indent=_HANG) if line else [""])
    ]
    return [_paint(line) for line in folded] if use_colour(sys.stdout) else folded


def _paint(line: str) -> str:
    if line.startswith(" "):
        return line
    for word, style in STATE_STYLES.items():
        before, found, after = line.partition(word)
        if found and len(before.split()) <= 1:
            return f"{before}{paint(found, style)}{after}"
    return line

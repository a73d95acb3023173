"""Rows for people: columns that fit a terminal, or whole lines for what reads a pipe."""

import io
import sys
from collections.abc import Sequence
from typing import TextIO

from muster_checks.base.vocabulary import shorten
from muster_cli.report.colours import VERDICT_STYLES

_FIRST_SHARE = 0.4  # of a terminal's width: a node's name may have 253 characters
_LEAST = 40  # columns: below it nothing can be laid out


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """``rows``: as long as ``head``; cells that are a verdict are coloured on a terminal."""
    file = file or sys.stdout
    if not file.isatty():
        print("\n".join(as_lines(head, rows)), file=file)
        return
    from rich.console import Console

    console = Console(file=file)
    print(as_page(head, rows, console.width, colour=not console.no_color), file=file, end="")


def as_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row, nothing cut, nothing left out: every line can be found by the name in it."""
    table = [[_clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]


def as_page(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colour: bool = False) -> str:
    """At most ``width`` columns; what is longer goes on below. A first cell like the one above it is left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(width, _LEAST)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(head):
        last, first = number == len(head) - 1, number == 0
        most = int(width * _FIRST_SHARE) if first else None
        table.add_column(title, overflow="fold", no_wrap=title == "VERDICT", max_width=most, ratio=1 if last else None)
    above = ""
    for row in rows:
        name = "" if row[0] == above else row[0]
        table.add_row(*(Text(_clean(cell), style=VERDICT_STYLES.get(cell, "")) for cell in (name, *row[1:])))
        above = row[0]
    page = io.StringIO()
    console = Console(file=page, width=width, force_terminal=colour, color_system="standard" if colour else None)
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _clean(text: str) -> str:
    """What agents and objects say may hold anything: on a terminal control characters are commands."""
    return shorten(text, 4096)

"""Tables: columns that fit the width of a terminal, or one full line per row for a pipe."""

import io
import sys
from collections.abc import Sequence
from typing import TextIO

from muster_checks.base.vocabulary import shorten
from muster_cli.report.colours import VERDICT_STYLES, use_colour

_FIRST_SHARE = 0.4  # of the width, for the first column: a node's name may have 253 characters
_LEAST = 40  # characters: a narrower table is not readable


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """``rows``: each as long as ``head``. Cells that hold a verdict are coloured on a terminal."""
    file = file or sys.stdout
    if not file.isatty():
        print("\n".join(as_lines(head, rows)), file=file)
        return
    from rich.console import Console

    print(as_page(head, rows, Console(file=file).width, colour=use_colour(file)), file=file, end="")


def as_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, never cut, so that grep finds a row by any of its words."""
    table = [[_clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]


def as_page(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colour: bool = False) -> str:
    """At most ``width`` characters; longer cells wrap. The first cell is left empty where it repeats the one above."""
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
    """Text of agents and objects may hold control characters, which would be commands to a terminal."""
    return shorten(text, 4096)

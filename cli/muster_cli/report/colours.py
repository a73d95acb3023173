"""The colours of verdicts and of fault states on a terminal, for all commands.

Styles have the names that rich uses, for tables that rich lays out; :func:`paint` writes the same styles without it.
"""

import os
from typing import TextIO

from muster_checks.base.vocabulary import Verdict

VERDICT_STYLES = {
    Verdict.PASS.value: "green",
    Verdict.WARN.value: "yellow",
    Verdict.FAIL.value: "bold red",
    Verdict.UNKNOWN.value: "magenta",
    Verdict.SKIP.value: "dim",
}
STATE_STYLES = {
    "PAUSED": "bold yellow",
    "TAINTED": "bold red",
    "WITHHELD": "bold yellow",
    "FAULTY": "yellow",
    "WAITING": "yellow",
    "HELD": "cyan",
    "FREE": "green",
}
_CODES = {  # Select Graphic Rendition, ECMA-48
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
    "bold red": "1;31",
    "bold yellow": "1;33",
    "dim": "2",
}


def use_colour(file: TextIO) -> bool:
    """On a terminal, unless $NO_COLOR is set and not empty (https://no-color.org) or $TERM is ``dumb``."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"

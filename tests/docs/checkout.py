"""A copy of the checkout, in which `make …` is typed as the documents have it: what it writes is nobody's."""

import shutil
import sys
from pathlib import Path

from tests.docs.document_commands import ROOT

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build")


def checkout(place: Path) -> Path:
    """In ``place``, which must not be there. Its virtual environment is the one that runs, and counts as installed."""
    shutil.copytree(ROOT, place, symlinks=True, ignore=_LEFT_OUT)
    (place / ".venv").mkdir()
    for each in Path(sys.prefix).iterdir():
        (place / ".venv" / each.name).symlink_to(each)
    installed = place / ".venv" / "installed"
    installed.unlink(missing_ok=True)
    installed.touch()
    return place

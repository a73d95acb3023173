"""Copies the checkout, so that `make …` can be run as the documents show it without changing the repository."""

import shutil
import sys
from pathlib import Path

from tests.docs.document_commands import ROOT

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build")


def checkout(place: Path) -> Path:
    """Copies to ``place``, which must not exist. The copy uses the running virtual environment, marked as installed."""
    shutil.copytree(ROOT, place, symlinks=True, ignore=_LEFT_OUT)
    (place / ".venv").mkdir()
    for each in Path(sys.prefix).iterdir():
        (place / ".venv" / each.name).symlink_to(each)
    installed = place / ".venv" / "installed"
    installed.unlink(missing_ok=True)
    installed.touch()
    return place

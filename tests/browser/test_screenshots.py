"""`make screenshots`: the fleet page's half of it, which takes seconds. The dashboards' takes a bad night of two
minutes: test_dashboards.py lives through that one, and asks for what the pictures show.
"""

import shlex
import subprocess
from pathlib import Path

import pytest
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT

PICTURES = ("docs/fleet.png", "docs/fleet-node.png")
PNG = b"\x89PNG\r\n"


@pytest.mark.usefixtures("chromium")
def test_the_fleet_pages_pictures_are_drawn_anew(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "muster")
    for name in PICTURES:
        (folder / name).unlink()
    (line,) = lines = commands_of_test(__file__)
    recipe = CommandRunner(lines, {}, {"MAKEFLAGS": "--dry-run"}, folder).type(line).splitlines()
    _installs, fleet, dashboards = map(shlex.split, recipe)
    assert (ROOT / dashboards[-1]).exists()
    done = subprocess.run(fleet, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}: {(folder / name).stat().st_size} bytes" for name in PICTURES]
    for name in PICTURES:
        assert (folder / name).read_bytes().startswith(PNG)

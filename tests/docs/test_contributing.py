"""Follows the guide of CONTRIBUTING.md: its check works as written."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COMPONENTS = ("checks", "agent", "tainter", "operator", "kube", "cli", "sandbox")


def steps() -> Iterator[tuple[str, str]]:
    """Yields the file that each step of the guide names, and the code below it."""
    guide = PAGE.partition("## Add a check in 15 minutes")[2].partition("\n## ")[0]
    for step in re.split(r"^\*\*\d\. ", guide, flags=re.M)[1:]:
        file = re.search(r"`((?:checks|tests)/[\w/.]+\.py)`", step)
        code = re.search(r"^```python\n(.*?)^```", step, flags=re.M | re.S)
        if file and code:
            yield file[1], code[1]


def test_the_check_of_the_guide_works_as_written(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "muster")
    files = dict(steps())
    registry = folder / "checks/muster_checks/registry.py"
    entry = files.pop("checks/muster_checks/registry.py")
    registry.write_text(registry.read_text().replace('    "iperf":', f'{entry}    "iperf":', 1))
    assert len(files) == 4
    for name, code in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    environ = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(folder / each) for each in COMPONENTS),
    }

    runner = CommandRunner(commands_of_test(__file__), {}, environ, folder)
    assert "4 passed" in runner.type("make test ARGS=tests/checks/hugepages")
    printed = runner.type("muster check hugepages --set min_free=512", judge=lambda done: done.returncode in (0, 1))
    assert "hugepages" in printed
    assert not runner.left
    linted = [sys.executable, "-m", "ruff", "check", *files]
    assert subprocess.run(linted, cwd=folder, timeout=60, check=False).returncode == 0

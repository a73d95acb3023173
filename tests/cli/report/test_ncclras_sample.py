"""An answer of NCCL's RAS service, written to a file in a pod."""

import os
import sys
from pathlib import Path

import pytest
from tests.checks.ncclras.ras_service import ALL_WELL, MISSING, communicator, missing, rank, report
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_cli.__main__ import main
from muster_cli.report.sample_formats import recognise


def test_the_documented_command_names_the_silent_ranks(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(report(communicator([rank(0)], [missing(2)])))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    runner = CommandRunner(commands_of_test(__file__), {}, path, tmp_path)
    for line in sorted(commands_of_test(__file__)):
        runner.type(line, judge=lambda done: done.returncode == 1 and "SilentRanks" in done.stdout)
    assert not runner.left


@pytest.mark.parametrize(
    ("text", "code"),
    [(MISSING.encode(), 1), (ALL_WELL.encode(), 0), (report(communicator([rank(0), rank(1)])), 0)],
)
def test_both_formats_are_recognised_without_the_name_of_the_check(tmp_path: Path, text: bytes, code: int) -> None:
    (tmp_path / "ras").write_bytes(text)
    form = recognise(text)
    assert form is not None
    assert form.checks == ("ncclras",)
    assert main(["check", "--sample", str(tmp_path / "ras")]) == code

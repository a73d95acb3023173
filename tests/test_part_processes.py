"""Commands that are forked from a process which has loaded them: what comes of them is what a program's caller sees."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.part_processes import run_muster

GUARD_S = 120.0


def test_a_command_has_its_exit_code_output_and_errors() -> None:
    told = run_muster(["--version"], os.environ, GUARD_S)
    assert (told.returncode, told.stdout.split()[0], told.stderr) == (0, "muster", "")
    refused = run_muster(["no-such-command"], os.environ, GUARD_S)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert "no-such-command" in refused.stderr


def test_a_command_has_the_environment_that_it_is_given_and_no_other() -> None:
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": "/no/such/kubeconfig"}
    refused = run_muster(["explain", "node-1"], environ, GUARD_S)
    assert refused.returncode == 3
    assert environ["KUBECONFIG"] in refused.stderr


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_muster(["vipu-sim", "--state", str(tmp_path), "--port", "0"], os.environ, 1.0)

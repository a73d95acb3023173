"""Recorded samples of other projects: where they are looked for, what a run says without them; none is tracked."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import shared_data as module
from tests.shared_data import ROOT, TOPICS, VARIABLE, SharedData, find_folder

TESTS = """
import pytest

def test_one(shared_data): pass

@pytest.mark.parametrize("number", [1, 2])
def test_two(shared_data, number): pass

def test_of_our_own(): pass
"""


def samples(folder: Path) -> Path:
    for topic in TOPICS:
        (folder / topic).mkdir(parents=True)
    return folder


def test_the_default_stands_beside_the_checkout(tmp_path: Path) -> None:
    assert find_folder({}, tmp_path / "muster") is None
    folder = samples(tmp_path / "shared/data")
    assert find_folder({}, tmp_path / "muster") == folder
    assert find_folder({VARIABLE: ""}, tmp_path / "muster") == folder


def test_the_variable_names_another_folder(tmp_path: Path) -> None:
    samples(tmp_path / "shared/data")
    folder = samples(tmp_path / "elsewhere")
    assert find_folder({VARIABLE: str(folder)}, tmp_path / "muster") == folder
    assert find_folder({VARIABLE: "../elsewhere"}, tmp_path / "muster") == folder


def test_a_variable_that_names_something_else_is_an_error_that_says_where(tmp_path: Path) -> None:
    folder = samples(tmp_path / "shared/data")
    with pytest.raises(ValueError, match=f"^{VARIABLE}=/gone: /gone: "):
        find_folder({VARIABLE: "/gone"}, tmp_path / "muster")
    (folder / "npd").rmdir()
    with pytest.raises(ValueError, match=rf"^{VARIABLE}={folder}: {folder}: .* npd;"):
        find_folder({VARIABLE: str(folder)}, tmp_path / "muster")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With four tests, of which three need recorded samples."""
    tests = tmp_path / "muster/tests"
    tests.mkdir(parents=True)
    shutil.copy(module.__file__, tests)
    (tests / "conftest.py").write_text('pytest_plugins = ["tests.shared_data"]\n')
    (tests / "test_some.py").write_text(TESTS)
    return tests.parent


def run(checkout: Path, **environment: str) -> tuple[int, str]:
    """pytest's exit code and what it prints."""
    plain = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "CI")}
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "--import-mode=importlib", "tests"]
    done = subprocess.run(
        command, cwd=checkout, env=plain | environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_without_them_one_line_says_how_many_tests_were_skipped(checkout: Path) -> None:
    code, said = run(checkout)
    assert code == 0
    (line,) = (line for line in said.splitlines() if VARIABLE in line)
    assert re.match(r"3 tests need\b", line)
    assert str(checkout.parent / "shared/data") in line
    assert re.search(r"\b1 passed, 3 skipped\b", said)


def test_without_them_a_run_in_ci_fails(checkout: Path) -> None:
    code, said = run(checkout, CI="true")
    assert code == 1
    assert re.search(r"\b1 passed, 3 errors\b", said)
    assert VARIABLE in said


def test_with_them_nothing_is_skipped(checkout: Path) -> None:
    samples(checkout.parent / "shared/data")
    code, said = run(checkout, CI="true")
    assert (code, "4 passed" in said) == (0, True), said


def test_a_run_with_a_wrong_variable_does_not_begin(checkout: Path) -> None:
    code, said = run(checkout, **{VARIABLE: "/gone"})
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {VARIABLE}=/gone: /gone: " in said


def test_none_of_them_is_a_file_of_this_repository(shared_data: SharedData) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = [ROOT / name for name in listed.split("\0") if name]
    ours = {_digest(path): path for path in tracked if path.is_file() and not path.is_symlink()}
    theirs = {_digest(path): path for path in shared_data.folder.rglob("*") if path.is_file()}
    assert len(ours) > 1000
    assert [(str(ours[each]), str(theirs[each])) for each in ours.keys() & theirs.keys()] == []


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

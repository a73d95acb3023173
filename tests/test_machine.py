"""`make test` installs the packages that are missing, and says what is skipped without them."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests import machine
from tests.machine import needs

from muster_sandbox.programs import requirements

TARGET = "test"
WANTED = {program.package for program in machine.PROGRAMS if TARGET in program.targets}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$PATH: a folder that has an apt-get that ends well, and writes down how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "apt-get", f'echo "$*" >> {tmp_path}/calls')
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str = "") -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def calls(folder: Path) -> list[str]:
    written = folder.parent / "calls"
    return written.read_text().splitlines() if written.exists() else []


def as_user(monkeypatch: pytest.MonkeyPatch, number: int, ci: bool = False) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: number)
    monkeypatch.setattr(machine, "CI", ci)


def skipped(reason: str) -> pytest.TestReport:
    place = (__file__, 1, f"Skipped: {reason}")
    return pytest.TestReport("tests/a.py::test_a", ("tests/a.py", 1, "test_a"), {}, "skipped", place, "setup")


def test_root_installs_what_is_missing_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    program(path, "kubectl")  # whoever's it is
    program(path, "iperf3")
    assert machine.main([TARGET]) == 0
    update, install = calls(path)
    assert update.split()[-1] == "update"
    words = install.split()
    assert "--no-install-recommends" in words
    assert "DPkg::Lock::Timeout=300" in words, "another apt may be at work"
    installed = set(words[words.index("--yes") + 1 :])
    assert {"chromium", "curl", "iputils-ping"} <= installed <= WANTED - {"kubernetes-client", "iperf3"}


def test_apt_is_not_called_where_nothing_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    monkeypatch.setattr(machine, "is_there", lambda _: True)
    assert machine.main([TARGET]) == 0
    assert calls(path) == []


@pytest.mark.parametrize("ci", [False, True])
def test_another_user_is_told_in_one_line_what_root_has_to_type(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: bool
) -> None:
    as_user(monkeypatch, 1000, ci)
    assert machine.main([TARGET]) == (1 if ci else 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert requirements.install_command(sorted(set(line.split()) & WANTED)) in line
    assert "chromium" in line
    assert calls(path) == []


def test_where_apt_fails_it_is_said_and_ci_goes_no_further(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(path, "apt-get", "exit 100")
    for ci, code in ((False, 0), (True, 1)):
        as_user(monkeypatch, 0, ci)
        assert machine.main([TARGET], again_after_s=()) == code
        assert "chromium" in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_program_skips_a_test_and_fails_it_in_ci(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    program(path, "curl")
    machine.require("root", "curl")
    for ci, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        as_user(monkeypatch, 0, ci)
        # either: an outcome that is not expected would be this test's own
        with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="iperf3") as caught:
            machine.require("curl", "iperf3")
        assert caught.type is outcome


def test_the_summary_counts_what_was_missing_and_leaves_other_reasons_out(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    mark = machine.needs("root")
    assert mark.args == (True,)
    reasons = [str(mark.kwargs["reason"])] * 2
    for want in ("iperf3", "a real node"):
        with pytest.raises(pytest.skip.Exception) as caught:
            machine.skip(want, "for some: reason")
        reasons.append(str(caught.value))
    other = "this kernel's ring holds 4,000 long records"
    line = machine.summary(map(skipped, [*reasons, other]))
    assert "\n" not in line
    for count in ("4 tests", "root 2", "iperf3 1", "a real node 1"):
        assert count in line
    assert machine.summary([skipped(other)]) == ""


@needs("gcc", "/usr/include/stdio.h")
@pytest.mark.parametrize(("compiler", "code"), [(False, 0), (True, 1)])
def test_coverage_is_held_to_its_bound_where_no_test_of_a_check_lacked_anything(
    tmp_path: Path, compiler: bool, code: int
) -> None:
    """One test of a check, which covers far less, with a compiler and without."""
    chosen = "tests/checks/nvidia/test_library.py::test_the_child_reads_a_real_library"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--cov",
        "--cov-report=",
        "--cov-fail-under=95",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("COV")}
    environment |= {"COVERAGE_FILE": str(tmp_path / "coverage")}
    if not compiler:
        environment["PATH"] = str(tmp_path)
    done = subprocess.run(
        [*command, chosen], cwd=Path(machine.__file__).parents[1], env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr

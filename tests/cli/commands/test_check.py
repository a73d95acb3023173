"""`muster check` on recorded kernel logs: what it prints and how it exits."""

import json
from pathlib import Path

import pytest
from tests.docs.command_list import commands_of_test
from tests.wording.facts import missing_facts

from muster_cli.__main__ import main

OFF_THE_BUS = "[ 1843.308145] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    log = tmp_path / "dmesg.txt"
    log.write_text(f"[    1.0] Linux version 6.1.0\n{OFF_THE_BUS}")  # saved logs may lack the last newline
    return log


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[ 1.0] nothing to see", 0),
        ("[ 1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", 1),
        # it had been quiet for long when the log was saved
        ("[ 1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault\n[ 9999999.0] usb 1-1: new device", 0),
        ("[2019-04-01T10:00:00] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", 1),
        (OFF_THE_BUS, 2),
    ],
)
def test_the_exit_code_is_that_of_a_monitoring_plug_in(tmp_path: Path, text: str, code: int) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(text + "\n")
    (line,) = commands_of_test(__file__)
    assert line == "muster check dmesg --sample"
    assert main([*line.split()[1:], str(log)]) == code


def test_json_is_a_list_of_results(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", "--sample", str(sample)]) == 2
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["check"], result["verdict"]) == ("dmesg", "FAIL")
    (finding,) = result["findings"]
    assert (finding["component"], finding["reason"], finding["class"]) == ("gpu/0000:3b:00.0", "Xid79", "reboot")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "dmesgg"], ('"dmesgg"', '"dmesg"', "muster checks")),
        (["check", "--sample", "/nowhere"], ("/nowhere",)),
        (["check", "dmesg", "--set", "colour=red"], ("--set colour=red", "muster checks")),
        (["check", "--set", "start=never"], ("start: 'never",)),
        (["chek"], ('"chek"', '"check"', "muster --help")),
    ],
)
def test_wrong_argument_is_named_with_the_allowed_ones(
    words: list[str], told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 64
    assert not missing_facts(capsys.readouterr().err, *told)


def test_root_without_a_kernel_log_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "dmesg", "--root", str(tmp_path)]) == 3
    assert "UNKNOWN" in capsys.readouterr().out


def test_the_first_lines_say_that_a_failure_was_written_from_user_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(f"6,1,1000000,-;usb 1-1: new device\n12,2,1843308145,-;{OFF_THE_BUS.partition('] ')[2]}\n")
    path = ["--set", "source=file", "--set", f"path={log}", "--set", "complete=true"]
    for words in (["--sample", str(log)], path):
        assert main(["check", "dmesg", *words]) == 2
        first, second, *_ = (line for line in capsys.readouterr().out.splitlines() if "recognised" not in line)
        assert not missing_facts(first, "FAIL", "user space", "gpu/0000:3b:00.0 Xid79")
        advice = second.partition("muster check ")[2].split()
        assert main(["check", *advice, *words]) == 0
        assert "user space" not in capsys.readouterr().out


def test_a_failure_that_the_kernel_reported_has_no_such_line(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "dmesg", "--sample", str(sample)]) == 2
    assert "user space" not in capsys.readouterr().out


def test_every_line_of_a_saved_flood_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text("".join(f"[ 5.{n:03}] NVRM: Xid (PCI:0000:3b:00): 13, pid={n}\n" for n in range(900)))
    assert main(["check", "--json", "--sample", str(log)]) == 1
    assert json.loads(capsys.readouterr().out)[0]["findings"][0]["count"] == 900

"""Lines whose times cannot be read: they may have been written on different days, so they do not count as a rate."""

from pathlib import Path

import pytest

from muster_cli.__main__ import main

LOCKUP = "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]"


def worst(lines: list[str], log: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """The exit code: 1 WARN, 2 FAIL."""
    log.write_text("\n".join(lines) + "\n")
    code = main(["check", "dmesg", "--sample", str(log)])
    capsys.readouterr()
    return code


@pytest.mark.parametrize(
    "stamp",
    [
        "M\u00e4r {:02d} 10:00:00 node-7 kernel: ",
        "[Do M\u00e4r {:2d} 10:00:00 2025] ",
        "[jeu. mars  {} 10:00:00 2025] ",
        "3\uc6d4 0{} 10:00:00 node-7 kernel: ",
        "Mar {} 10:00:00 node-7 kernel: ",
        "Mar  {} 10:00:00 node-7 kernel: ",
        "Thu 2025-11-{:02d} 10:00:00 UTC node-7 kernel: ",
        "",
    ],
)
def test_five_lockups_on_five_days_are_not_repeated_lockups(
    stamp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worst([stamp.format(day) + LOCKUP for day in range(1, 6)], tmp_path / "log", capsys) == 1


@pytest.mark.parametrize(
    "stamp",
    [
        "Mar 3 10:0{}:00 node-7 kernel: ",
        "Mar  3 10:0{}:00 node-7 kernel: ",
        "[  {}00.1] ",
        "Thu 2025-11-20 10:0{}:00 UTC node-7 kernel: ",
        "Thu 2025-11-20 10:0{}:00 CET node-7 kernel: ",
        "2025-11-20 10:0{}:00 +03 node-7 kernel: ",
        "2025-11-20 10:0{}:00,123 node-7 kernel: ",
        "2025-11-20 10:0{}:00 NODE kernel: ",
    ],
)
def test_five_lockups_within_ten_minutes_are(stamp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert worst([stamp.format(minute) + LOCKUP for minute in range(1, 6)], tmp_path / "log", capsys) == 2


def test_a_time_that_cannot_be_read_is_not_that_of_the_line_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read, unread = "Nov  3 10:00:0{} node-7 kernel: usb 1-1: new", "3\uc6d4 0{} 10:00:00 node-7 kernel: "
    lines = [line for day in range(1, 6) for line in (read.format(day), unread.format(day) + LOCKUP)]
    assert worst(lines, tmp_path / "log", capsys) == 1


def test_a_count_within_one_line_needs_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "<4>EDAC MC0: {} CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)"
    assert worst([line.format(10)], tmp_path / "log", capsys) == 1
    assert worst([line.format(1)] * 30, tmp_path / "log", capsys) == 0

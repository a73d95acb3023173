"""What util-linux's dmesg and systemd's journalctl print of this machine's own kernel log, typed as the pages do."""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.checks.dmesg.sources.test_real_kmsg import mark, pytestmark, write  # noqa: F401 - two are pytest's
from tests.docs.command_list import commands_of_test
from tests.machine import require

from muster_cli.__main__ import main

JOURNALD = "/lib/systemd/systemd-journald"
# one of its own, that keeps what the kernel says in memory and leaves the kernel's auditing as it is
JOURNAL = f"""mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/log &&
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d &&
printf '[Journal]\\nStorage=volatile\\nAudit=\\n' > /run/systemd/journald.conf.d/muster.conf && exec {JOURNALD}"""
LIMIT_S = 60.0
DATED, FOLLOWING = ("dmesg --time-format iso", "journalctl -k -o short-iso"), ("dmesg -w", "dmesg --follow-new")


def test_these_are_the_lines() -> None:
    assert {*DATED, *FOLLOWING} == commands_of_test(__file__)


@pytest.fixture
def journal() -> Iterator[list[str]]:
    """The beginning of a command line: the rest of it finds a journal that has this kernel's log."""
    require("journalctl", "unshare", "root")
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", JOURNAL], stdin=subprocess.DEVNULL) as process:
        try:
            yield ["nsenter", "--mount", "--target", str(process.pid)]
        finally:
            process.kill()


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture
def fault() -> str:
    """The PCI domain in a line of the kernel log that stands in no other."""
    domain = uuid.uuid4().hex[:4]
    write(f"NVRM: Xid (PCI:{domain}:3b:00): 79, pid=1234, GPU has fallen off the bus.", level=3)
    return domain


def printed(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S).stdout


def replayed(log: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    log.write_text(text)
    policy = log.with_name("policy.yaml")
    policy.write_text("rules: [{name: hw, match: {class: [reboot]}, action: taint, holdDown: 0s}]\n")
    assert main(["replay", str(policy), "--log", str(log), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize("line", DATED)
def test_what_they_print_is_read_with_its_dates(
    line: str, journal: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*(journal if line.startswith("journalctl") else ()), *line.split()]
    text = until(lambda: (found := printed(words)) and f"(PCI:{fault}:" in found and found)
    log = tmp_path / "node-7.log"
    log.write_text(text)
    assert main(["check", "dmesg", "--sample", str(log)]) == 2
    assert f"gpu/{fault}:3b:00.0 Xid79" in capsys.readouterr().out

    (own,) = (each for each in text.splitlines() if f"(PCI:{fault}:" in each)
    at = datetime.fromisoformat(own.split()[0].replace(",", ".")).astimezone(UTC)
    told = replayed(log, f"{own}\n", capsys)
    assert [spell["since"] for spell in told["taints"]] == [at.strftime("%Y-%m-%dT%H:%M:%SZ")]
    assert told["badLines"] == 0
    assert "1970" not in str(told["notes"])


def test_times_since_boot_are_said_to_be_no_dates(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = replayed(tmp_path / "node-7.log", printed(["dmesg"]), capsys)
    assert told["from"].startswith("1970-")
    assert "1970" in str(told["notes"])


@pytest.mark.parametrize("line", FOLLOWING)
def test_who_follows_prints_a_line_as_it_is_written(line: str, mark: str) -> None:  # noqa: F811 - the fixture
    write(f"{mark} before")
    with subprocess.Popen(line.split(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            os.set_blocking(process.stdout.fileno(), False)
            text = b""

            def is_told() -> bool:
                nonlocal text
                write(f"{mark} after")  # again and again, as nobody says when it has begun to listen
                text += process.stdout.read() or b""
                return f"{mark} after".encode() in text

            until(is_told)
        finally:
            process.kill()
    assert (f"{mark} before".encode() in text) == (line == "dmesg -w"), "what was there already is told by -w alone"

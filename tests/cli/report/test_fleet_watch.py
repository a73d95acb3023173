"""`muster status --watch`: what is printed, where, and the exit code after Ctrl-C."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.commands.test_run import kubeconfig
from tests.cli.commands.test_status import HEALTHS, NOW, cluster, health, node

from muster_cli.report.fleet.rows import NodeRow, node_rows
from muster_cli.report.fleet.watch import FleetWatch
from muster_kube.api.errors import Unreachable

GONE = Unreachable("refused", "/api/v1/nodes")


def fleet(now: float = NOW, **verdicts: str) -> list[NodeRow]:
    return node_rows([node(name) for name in verdicts], {name: health(name, v) for name, v in verdicts.items()}, now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(reads: Sequence[list[NodeRow] | Exception], file: io.StringIO) -> FleetWatch:
    """Until all reads are shown."""
    left = list(reads)

    async def read() -> list[NodeRow]:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def sleep(_: float) -> None:
        if not left:
            raise asyncio.CancelledError

    made = FleetWatch(file=file, sleep=sleep, now=lambda: NOW)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(made.run(read))
    return made


def test_without_a_terminal_only_changed_rows_follow() -> None:
    out = io.StringIO()
    reads = [fleet(a="PASS", b="PASS"), fleet(NOW + 2, a="PASS", b="PASS"), fleet(a="PASS", b="FAIL"), fleet(b="FAIL")]
    assert watch(reads, out).exit_code() == 2
    first, later = out.getvalue().splitlines()[:4], out.getvalue().splitlines()[4:]
    assert [line.split()[1:3] for line in first[1:3]] == [["a", "PASS"], ["b", "PASS"]]
    assert [line.split()[1:3] for line in later] == [["b", "FAIL"], ["a", "removed"]]


def test_on_a_terminal_the_table_is_repainted_when_it_differs() -> None:
    out = Terminal()
    watch([fleet(a="PASS"), fleet(a="PASS"), fleet(a="FAIL")], out)
    pages = out.getvalue().split("\x1b[H\x1b[2J")[1:]
    assert len(pages) == 2
    assert "PASS" in pages[0]
    assert "FAIL" in pages[1]


def test_a_large_fleet_fits_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    out = Terminal()
    watch([fleet(**{f"n{number}": "FAIL" for number in range(50)})], out)
    assert len(out.getvalue().splitlines()) <= 10


def test_an_error_while_watching_is_shown_and_retried(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    made = watch([fleet(a="PASS"), GONE, GONE], out)
    assert made.exit_code() == 3
    assert capsys.readouterr().err.count("muster: ") == 1, "once, not at each attempt"
    assert watch([fleet(a="PASS"), GONE, fleet(a="PASS")], out).exit_code() == 0


def test_an_error_at_the_first_read_ends_the_command() -> None:
    async def read() -> list[NodeRow]:
        raise GONE

    with pytest.raises(Unreachable):
        asyncio.run(FleetWatch(file=io.StringIO()).run(read))


def test_ctrl_c_ends_with_the_code_of_what_was_seen(tmp_path: Path) -> None:
    with cluster({"/api/v1/nodes": [node("a")], HEALTHS: [health("a", "WARN")]}) as server:
        command = [sys.executable, "-m", "muster_cli", "status", "--watch"]
        command += ["--kubeconfig", str(kubeconfig(tmp_path, server))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
        with process:
            assert process.stdout is not None
            while b"1 node" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")
